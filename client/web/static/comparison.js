// A comparison of two: ratios with intervals and verdicts, what differs, and the times side by side.

import { chip, commandLine, h, s, shown } from "./dom.js";
import { chart } from "./charts.js";

const WIDTH = 260;
const KINDS = { same: "stable", better: "stable", worse: "invalid", undecided: "not-known" };

// The ratio with its interval on a logarithmic scale; the shaded part counts as the same.
function whisker(row, reach) {
  const place = (ratio) => WIDTH * (0.5 + Math.log(ratio) / (2 * reach));
  const drawn = s("svg", { viewBox: `0 0 ${WIDTH} 16`, class: "whisker", "aria-hidden": "true", focusable: "false" });
  if (row.threshold !== null) {
    const [low, high] = [place(1 / (1 + row.threshold)), place(1 + row.threshold)];
    drawn.append(s("rect", { x: low, y: 0, width: Math.max(0, high - low), height: 16, class: "within" }));
  }
  drawn.append(s("line", { x1: WIDTH / 2, x2: WIDTH / 2, y1: 0, y2: 16, class: "one" }));
  if (row.ratio_low !== null && row.ratio_high !== null && row.ratio_low > 0) {
    drawn.append(s("line", { x1: place(row.ratio_low), x2: place(row.ratio_high), y1: 8, y2: 8, class: `line ${row.verdict}` }));
  }
  if (row.ratio !== null && row.ratio > 0) drawn.append(s("circle", { cx: place(row.ratio), cy: 8, r: 3.5, class: row.verdict }));
  return drawn;
}

function rowsOf(found) {
  return found.rows.map((values) => Object.fromEntries(found.columns.map((column, at) => [column.key, values[at]])));
}

function table(found) {
  const rows = rowsOf(found);
  const ends = rows.flatMap((row) => [row.ratio_low, row.ratio_high, row.ratio, 1 + (row.threshold ?? 0)]);
  const reach = Math.max(0.02, ...ends.filter((end) => end !== null && end > 0).map((end) => Math.abs(Math.log(end)))) * 1.1;
  const body = found.rows.map((values, place) =>
    h(
      "tr",
      { "data-figure": rows[place].figure },
      found.columns.map((column, at) => {
        const text = found.texts[place][at];
        if (column.key === "verdict") return h("td", {}, chip(KINDS[values[at]] ?? "not-known", values[at] ?? "–"));
        if (column.key === "figure") return h("th", { scope: "row" }, values[at]);
        return h("td", { class: column.numeric ? "number" : null, "data-key": column.key }, shown(values[at], text));
      }),
      h("td", { class: "of-whisker" }, whisker(rows[place], reach)),
    ),
  );
  return h(
    "div",
    { class: "scroll", role: "region", tabindex: "0", "aria-label": "Comparison" },
    h(
      "table",
      { class: "comparison" },
      h("caption", { class: "unseen" }, "B compared with A: ratios with their 95 % intervals"),
      h("thead", {}, h("tr", {}, found.columns.map((column) => h("th", { scope: "col", class: column.numeric ? "number" : null }, column.header)), h("th", { scope: "col", class: "of-whisker" }, "B / A"))),
      h("tbody", {}, body),
    ),
  );
}

function side(page, name, found) {
  return h(
    "section",
    { class: "side" },
    h("h2", {}, h("span", { class: `side-name side-${name.toLowerCase()}` }, name), " ", found.title ?? found.given),
    h(
      "ul",
      { class: "plain" },
      (found.evaluations ?? []).map((each) => {
        const path = `/evaluations/${encodeURIComponent(each.id)}`;
        return h("li", {}, h("a", { href: page.router.href(path), "data-path": path }, each.text));
      }),
    ),
  );
}

export async function comparisonView(page, query) {
  const [a, b] = [query.get("a") ?? "", query.get("b") ?? ""];
  const found = await page.transport.comparison(a, b);
  const list = page.lastList ?? "/";
  const swapped = `/compare?a=${encodeURIComponent(b)}&b=${encodeURIComponent(a)}`;
  const differs = (found.differs ?? []).map(([name, left, right]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, left), h("td", {}, right)),
  );
  const element = h(
    "article",
    { class: "compare" },
    h("a", { class: "back", href: page.router.href(list), "data-path": list }, "← Evaluations"),
    h("div", { class: "title" }, h("h1", {}, "Comparison"), h("a", { href: page.router.href(swapped), "data-path": swapped }, "Swap A and B")),
    h("div", { class: "columns" }, side(page, "A", found.a), side(page, "B", found.b)),
    found.missing
      ? h("p", { class: "remark" }, "This file does not hold the comparison of these two. This command makes it:")
      : null,
    found.error ? h("p", { class: "problem" }, found.error) : null,
    found.conclusion ? h("p", { class: `conclusion ${found.worse ? "worse" : ""}` }, found.conclusion) : null,
    found.rows ? table(found) : null,
    found.chart ? chart(found.chart) : null,
    differs.length
      ? h(
          "section",
          {},
          h("h2", {}, "What differs"),
          h(
            "div",
            { class: "scroll", role: "region", tabindex: "0", "aria-label": "What differs" },
            h("table", { class: "differs" }, h("caption", { class: "unseen" }, "Conditions in which A and B differ"), h("thead", {}, h("tr", {}, ["condition", "A", "B"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, differs)),
          ),
        )
      : null,
    (found.notes ?? []).length
      ? h("section", {}, h("h2", {}, "Notes"), h("ul", { class: "notes" }, found.notes.map((note) => h("li", {}, note))))
      : null,
    h("section", {}, h("h2", {}, "On the command line"), commandLine(found.command, page.announce)),
  );
  return { title: "Comparison", element };
}
