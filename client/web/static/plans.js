// Plans: how many of their runs have ended in which way, as a table that follows them while they run.

import { chip, h, shown } from "./dom.js";

const PLAN_CHIPS = { running: "stable", complete: "", stopped: "disturbed" };
const PLAN_MARKS = { running: "▶ ", complete: "✓ ", stopped: "■ " };
const RUN_PARTS = { complete: "complete", "in work": "working", waiting: "waiting" };

export function planState(plan) {
  if (plan.problem) return chip("invalid", "cannot be read", plan.problem);
  return chip(PLAN_CHIPS[plan.state] ?? "", h("span", {}, h("span", { "aria-hidden": "true" }, PLAN_MARKS[plan.state] ?? ""), plan.state));
}

export function planCounts(plan) {
  const told = Object.entries(plan.counts).map(([name, count]) => `${count} ${name}`);
  return told.length ? told.join(", ") : "no run";
}

// One bar of all runs. What is neither complete nor in work nor waiting has failed.
export function planBar(plan) {
  const parts = { complete: 0, failed: 0, working: 0 };
  for (const [name, count] of Object.entries(plan.counts)) {
    const part = RUN_PARTS[name] ?? "failed";
    if (part in parts) parts[part] += count;
  }
  const bar = h("span", { class: "plan-bar", role: "img", "aria-label": `Of ${plan.total} runs: ${planCounts(plan)}` });
  for (const [part, count] of Object.entries(parts)) {
    if (!count) continue;
    const drawn = h("span", { class: `part ${part}` });
    drawn.style.inlineSize = `${(100 * count) / plan.total}%`;
    bar.append(drawn);
  }
  return bar;
}

export function planMoment(text) {
  return text ? h("time", { datetime: text }, text.slice(0, 19).replace("T", " ")) : shown(null);
}

// Puts an element in the place of what a holder has; what has the focus there, and the scroll, stay where they are.
export function putAgain(holder, element) {
  const active = document.activeElement;
  const within = holder.contains(active) ? active : null;
  const key = within?.dataset.path ? ["path", within.dataset.path] : within?.dataset.sort ? ["sort", within.dataset.sort] : null;
  const left = holder.querySelector(".scroll")?.scrollLeft ?? 0;
  holder.replaceChildren(...(element ? [element] : []));
  const region = holder.querySelector(".scroll");
  if (region) region.scrollLeft = left;
  if (!within) return;
  const again = key ? holder.querySelector(`[data-${key[0]}="${CSS.escape(key[1])}"]`) : region;
  (again ?? region)?.focus({ preventScroll: true });
}

function planLine(page, plan) {
  const path = `/plans/${encodeURIComponent(plan.name)}`;
  return h(
    "tr",
    { "data-plan": plan.name },
    h("th", { scope: "row" }, h("a", { href: page.router.href(path), "data-path": path }, plan.name), plan.description ? h("span", { class: "plan-text" }, plan.description) : null),
    h("td", {}, planState(plan)),
    h("td", { class: "of-bar" }, plan.problem ? h("span", { class: "plan-text" }, plan.problem) : [planBar(plan), h("span", { class: "plan-text" }, planCounts(plan))]),
    h("td", { class: "number" }, shown(plan.total, plan.total.toLocaleString("en"))),
    h("td", { class: "of-changed" }, planMoment(plan.changed)),
  );
}

function plansTable(page, plans) {
  if (!plans.length) return h("p", { class: "note" }, "There is no plan in the data directory yet; agent plan run makes one.");
  return h(
    "div",
    { class: "scroll", role: "region", tabindex: "0", "aria-label": "Plans" },
    h(
      "table",
      { class: "plans" },
      h("caption", { class: "unseen" }, "Plans, with how many of their runs have ended in which way"),
      h(
        "thead",
        {},
        h("tr", {}, [["plan", ""], ["state", ""], ["progress", "of-bar"], ["runs", "number"], ["last change", "of-changed"]].map(([name, kind]) => h("th", { scope: "col", class: kind || null }, name))),
      ),
      h("tbody", {}, plans.map((plan) => planLine(page, plan))),
    ),
  );
}

export async function plansView(page) {
  const holder = h("div", {}, plansTable(page, (await page.transport.plans()).plans));
  page.onPlans = (plans) => putAgain(holder, plansTable(page, plans));
  const back = h("a", { class: "back", href: page.router.href("/"), "data-path": "/" }, "← Evaluations");
  return { title: "Plans", element: h("article", {}, back, h("h1", { class: "above" }, "Plans"), holder) };
}
