// One plan: its progress, a table of what its cells measured, what failed, and its runs; it follows them live.

import { chip, h, shown } from "./dom.js";
import { chart } from "./charts.js";
import { reportTable } from "./tables.js";
import { planBar, planCounts, planMoment, planState, putAgain } from "./plans.js";

const READ_AGAIN_MS = 300;
const REST = 5; // the page rests for so many times as long as its last question took
const PLAN_SELECTS = [
  ["rows", "First rows", "dimensions", "as in the plan"],
  ["columns", "Columns", "dimensions", "none"],
  ["value", "Figure", "figures", "the main one"],
  ["minimize", "Lowest", "figures", "none"],
  ["maximize", "Highest", "figures", "none"],
  ["scaling", "Scaling", "scalings", "none"],
];

// A section that is made again only when what it shows has changed.
function kept(make) {
  const holder = h("div", {});
  let known = null;
  return {
    holder,
    show(value) {
      const text = JSON.stringify(value);
      if (text === known) return;
      known = text;
      putAgain(holder, make(value));
    },
  };
}

function runState(state) {
  if (state === "complete" || state === "waiting") return chip("", state);
  return chip(state === "in work" ? "stable" : "invalid", state);
}

function runRow(page, run) {
  const links = run.evaluations.map((id, at) => {
    const path = `/evaluations/${encodeURIComponent(id)}`;
    return [at ? " " : "", h("a", { href: page.router.href(path), "data-path": path }, h("code", {}, id.slice(0, 8)))];
  });
  const told = [run.reason, ...run.losses.map((loss) => `before: ${loss}`)].filter(Boolean).join("; ");
  const where = run.job ? `job ${run.job}` : run.host;
  return h(
    "tr",
    { "data-run": run.key },
    h("td", {}, runState(run.state)),
    h("th", { scope: "row", class: "of-cell", title: run.command }, run.cell, h("code", { class: "plan-text" }, run.key)),
    h("td", { class: "of-cell" }, told || ""),
    h("td", { class: "number" }, shown(run.duration_s, run.duration_s?.toFixed(1))),
    h("td", {}, planMoment(run.start)),
    h("td", {}, shown(where)),
    h("td", {}, links.length ? links : shown(null)),
  );
}

function runsTable(page, { runs, total }) {
  if (!runs.length) return null;
  const rest = runs.length < total ? `: ${runs.length} of ${total.toLocaleString("en")}, those that are not complete first` : "";
  const names = ["state", "cell", "reason", "took (s)", "began (UTC)", "where", "evaluations"];
  return h(
    "div",
    { class: "scroll", role: "region", tabindex: "0", "aria-label": "Runs" },
    h(
      "table",
      { class: "runs" },
      h("caption", {}, `Runs${rest}`),
      h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", class: name === "took (s)" ? "number" : null }, name)))),
      h("tbody", {}, runs.map((run) => runRow(page, run))),
    ),
  );
}

// The selects stay the same elements, so that what has the focus keeps it.
function planForm(query, onChange) {
  const selects = new Map();
  const fields = PLAN_SELECTS.map(([key, label]) => {
    const select = h("select", { id: `plan-${key}`, onchange: (event) => onChange(key, event.target.value) });
    selects.set(key, select);
    return h("span", { class: "field" }, h("label", { for: `plan-${key}` }, label), select);
  });
  const where = h("input", {
    id: "plan-where",
    type: "search",
    value: query.get("where") ?? "",
    placeholder: "batch_size >= 8",
    autocomplete: "off",
    spellcheck: "false",
    size: "18",
    onchange: (event) => onChange("where", event.target.value.trim()),
  });
  const form = h(
    "form",
    { class: "filters plan-form", "aria-label": "Table", onsubmit: (event) => event.preventDefault() },
    fields,
    h("span", { class: "field" }, h("label", { for: "plan-where" }, "Where"), where),
  );
  let known = "";
  function show(found) {
    const wanted = PLAN_SELECTS.map(([key]) => query.getAll(key).join(","));
    const text = JSON.stringify([found, wanted]);
    if (text === known) return;
    known = text;
    PLAN_SELECTS.forEach(([key, , source, usual], at) => {
      const all = [...found[source]];
      if (wanted[at] && !all.some((each) => each.key === wanted[at])) all.push({ key: wanted[at], header: wanted[at] });
      selects.get(key).replaceChildren(
        h("option", { value: "" }, usual),
        ...all.map((each) => h("option", { value: each.key }, each.header)),
      );
      selects.get(key).value = wanted[at];
    });
  }
  return { form, show };
}

export async function planView(page, name, query) {
  const at = `/plans/${encodeURIComponent(name)}`;
  const back = h("a", { class: "back", href: page.router.href("/plans"), "data-path": "/plans" }, "← Plans");
  const sort = { report: null, failures: null };
  const problem = h("p", { class: "problem", hidden: true, role: "alert" });
  const wait = h("p", { class: "note", hidden: true });
  const head = kept((plan) => h("div", {}, h("div", { class: "title" }, h("h1", {}, plan.name), h("span", { class: "chips" }, planState(plan))), h("p", { class: "subtitle" }, plan.description ? `${plan.description} · ` : "", planCounts(plan), plan.changed ? [" · last change ", planMoment(plan.changed)] : ""), plan.total ? planBar(plan) : null));
  const table = kept((found) => found && reportTable(found, sort));
  const charts = kept((all) => (all.length ? h("div", {}, all.map((each) => chart(each))) : null));
  const notes = kept((all) => (all.length ? h("ul", { class: "notes" }, all.map((note) => h("li", {}, note))) : null));
  const failures = kept((found) => found && h("section", { class: "report" }, reportTable(found, sort)));
  const runs = kept((value) => runsTable(page, value));
  const form = planForm(query, (key, value) => {
    if (value) query.set(key, value);
    else query.delete(key);
    const text = query.toString();
    page.router.replace(text ? `${at}?${text}` : at);
    return fill();
  });
  let latest = 0;
  let asking = false;
  let stale = false;
  let seen = null;
  let failed = 0;

  function say(text) {
    problem.hidden = !text;
    if (problem.textContent !== text) problem.textContent = text;
  }

  function show(found) {
    const { runs: listed, table: tabled, failures: lost, choices, charts: drawn, notes: told, refused, reading, ...plan } = found;
    const ended = Object.entries(plan.counts).filter(([state]) => !["complete", "in work", "waiting"].includes(state));
    const failing = ended.reduce((sum, [, count]) => sum + count, 0);
    if (seen && (seen.state !== plan.state || failing > failed)) page.announce(`${plan.name} ${plan.state}: ${planCounts(plan)}`);
    [seen, failed] = [plan, failing];
    head.show(plan);
    say(plan.problem || refused);
    wait.hidden = !reading;
    if (reading) wait.textContent = `reading what ${reading.done} of ${reading.total} cells measured…`;
    failures.show(lost);
    runs.show({ runs: listed, total: plan.total });
    if (reading) return;
    form.form.hidden = choices.figures.length === 0;
    form.show(choices);
    table.show(tabled);
    charts.show(drawn);
    notes.show(told);
  }

  async function fill() {
    const mine = ++latest;
    for (;;) {
      let found;
      try {
        found = await page.transport.plan(name, query.toString());
      } catch (error) {
        if (mine === latest) say(error.message);
        return;
      }
      if (mine !== latest) return;
      show(found);
      if (!found.reading) return;
      await new Promise((done) => setTimeout(done, READ_AGAIN_MS));
      if (mine !== latest || !element.isConnected) return;
    }
  }

  // What changes while a question is open, or during the rest after it, is asked for once.
  async function follow() {
    stale = true;
    if (asking) return;
    asking = true;
    while (stale) {
      stale = false;
      const began = performance.now();
      await fill();
      await new Promise((done) => setTimeout(done, REST * (performance.now() - began)));
      if (!element.isConnected) break;
    }
    asking = false;
  }

  const element = h(
    "article",
    { class: "plan", "data-plan": name },
    back,
    head.holder,
    problem,
    wait,
    form.form,
    table.holder,
    charts.holder,
    notes.holder,
    failures.holder,
    runs.holder,
  );
  show(await page.transport.plan(name, query.toString()));
  if (!wait.hidden) setTimeout(follow, READ_AGAIN_MS);
  page.onPlans = (plans) => {
    const now = plans.find((plan) => plan.name === name);
    if (!now) say(`The plan ${name} is not there any more.`);
    else if (JSON.stringify(now) !== JSON.stringify(seen)) follow();
  };
  return { title: `${name} · Plans`, element, back: "/plans" };
}
