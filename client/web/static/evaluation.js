// One evaluation: its figures with intervals, the verdict, its pictures, its tables, what it ran on, and how to repeat it.

import { chip, commandLine, h, shown, verdict } from "./dom.js";
import { chart } from "./charts.js";
import { reportTable } from "./tables.js";

function ends(figure) {
  if ((figure.low ?? null) === null && (figure.high ?? null) === null) return null;
  const low = figure.low === null ? null : shown(figure.low, figure.low_text);
  const high = figure.high === null ? null : shown(figure.high, figure.high_text);
  const parts = low && high ? [low, " – ", high] : low ? ["≥ ", low] : ["≤ ", high];
  return h("span", { class: "interval" }, "95 % ", parts);
}

function headline(figure) {
  return h(
    "div",
    { class: "card", "data-key": figure.key, "data-report": figure.report },
    h("dt", {}, figure.label),
    h("dd", {}, h("span", { class: "value" }, shown(figure.value, figure.text)), ends(figure)),
  );
}

function figuresTable(figures) {
  const line = (figure) =>
    h(
      "tr",
      { "data-key": figure.key, "data-report": figure.report },
      h("th", { scope: "row" }, figure.label),
      h("td", { class: "number" }, shown(figure.value, figure.text)),
      h("td", { class: "number" }, figure.low === undefined ? "" : shown(figure.low, figure.low_text)),
      h("td", { class: "number" }, figure.high === undefined ? "" : shown(figure.high, figure.high_text)),
    );
  return h(
    "div",
    { class: "scroll", role: "region", tabindex: "0", "aria-label": "All figures" },
    h(
      "table",
      { class: "figures" },
      h("caption", {}, "All figures, with the ends of their 95 % intervals"),
      h(
        "thead",
        {},
        h("tr", {}, ["figure", "value", "low", "high"].map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name))),
      ),
      h("tbody", {}, figures.map(line)),
    ),
  );
}

function facts(section) {
  return h(
    "section",
    { class: "facts" },
    h("h2", {}, section.heading),
    h(
      "dl",
      {},
      section.rows.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text === null || text === "" ? "–" : String(text))]),
    ),
  );
}

export async function evaluationView(page, id) {
  const found = await page.transport.evaluation(id);
  const list = page.lastList ?? "/";
  const back = h("a", { class: "back", href: page.router.href(list), "data-path": list }, "← Evaluations");
  const others = found.group.map((each) => {
    const path = `/evaluations/${encodeURIComponent(each.id)}`;
    return h("li", {}, h("a", { href: page.router.href(path), "data-path": path }, each.text));
  });
  const heads = found.figures
    .filter((figure) => figure.headline !== null)
    .sort((one, other) => one.headline - other.headline);
  const element = h(
    "article",
    { class: "evaluation", "data-id": found.id },
    back,
    h(
      "div",
      { class: "title" },
      h("h1", {}, found.title),
      h("span", { class: "chips" }, verdict(found.stability, found.conditions), found.status === "complete" ? null : chip("disturbed", found.status), found.invalid ? chip("invalid", "INVALID", found.invalid) : null),
    ),
    h("p", { class: "subtitle" }, found.subtitle, " · ", h("time", { datetime: found.created_at }, found.created_text), " · ", h("code", {}, found.id)),
    found.invalid ? h("p", { class: "remark invalid" }, `INVALID: ${found.invalid}`) : null,
    found.remarks.map((remark) => h("p", { class: "remark" }, remark)),
    heads.length ? h("dl", { class: "cards" }, heads.map(headline)) : null,
    found.hints.map((hint) => h("p", { class: "note" }, hint)),
    found.charts.map((each) => chart(each)),
    found.omitted ? h("p", { class: "remark" }, found.omitted) : null,
    h(
      "div",
      { class: "columns" },
      found.figures.length ? figuresTable(found.figures) : null,
      h("div", {}, found.facts.slice(0, 1).map(facts)),
    ),
    found.tables.map((table) => h("section", { class: "report" }, reportTable(table))),
    h("div", { class: "masonry" }, found.facts.slice(1).map(facts)),
    h("section", {}, h("h2", {}, "Run it again"), found.command.line ? commandLine(found.command.line, page.announce) : null, found.command.notes.map((note) => h("p", { class: "note" }, note))),
    h("section", {}, h("h2", {}, "Manifest"), h("details", {}, h("summary", {}, found.manifest_name), h("pre", { tabindex: "0" }, found.manifest))),
    others.length ? h("section", {}, h("h2", {}, "Group"), h("ul", { class: "plain" }, others)) : null,
  );
  return { title: found.title, element };
}
