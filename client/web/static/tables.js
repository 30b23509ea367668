// Tables: headings that sort, cells as reports print them, and the order of values.

import { h, shown } from "./dom.js";

// None comes last in either direction.
export function compareValues(one, other, descending) {
  const missing = (value) => value === null || value === undefined;
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  const order =
    typeof one === "number" && typeof other === "number"
      ? one - other
      : String(one).localeCompare(String(other), "en", { numeric: true });
  return descending ? -order : order;
}

// The heading of a column: a button in a cell that says how the column is sorted.
export function heading(column, sort, onSort) {
  const sorted = sort && sort.key === column.key;
  const direction = sorted ? (sort.descending ? "descending" : "ascending") : null;
  const label = h("span", {}, column.header);
  const arrow = h("span", { class: "arrow", "aria-hidden": "true" }, sorted ? (sort.descending ? "▾" : "▴") : "");
  const content = onSort
    ? h("button", { type: "button", onclick: () => onSort(column.key), "data-sort": column.key }, label, arrow)
    : label;
  return h(
    "th",
    { scope: "col", class: column.numeric ? "number" : null, "aria-sort": onSort ? (direction ?? "none") : null },
    content,
  );
}

// A new sort after a click: the same column turns around; another begins with its largest numbers or first letters.
export function resorted(sort, column) {
  if (sort && sort.key === column.key) return { key: column.key, descending: !sort.descending };
  return { key: column.key, descending: Boolean(column.numeric) };
}

const SHARE = "share_percent";

function cell(column, value, text) {
  const content = shown(value, text);
  if (column.key !== SHARE || typeof value !== "number") {
    const long = typeof value === "string" && value.length > 40 ? value : null;
    const kind = column.numeric ? "number" : long ? "long" : null;
    return h("td", { class: kind, title: long, "data-key": column.key }, content);
  }
  const bar = h("span", { class: "share", "aria-hidden": "true" });
  bar.style.inlineSize = `${Math.max(0, Math.min(100, value))}%`;
  return h("td", { class: "number with-share", "data-key": column.key }, bar, content);
}

// A report's rows, sorted here by a click on a heading; `sorts` keeps how, for when the table is made again.
export function reportTable(table, sorts = {}) {
  const body = h("tbody");
  const head = h("thead");
  const known = sorts[table.report];
  let sort = known && table.columns.some((column) => column.key === known.key) ? known : null;

  function fill() {
    const order = table.rows.map((_, place) => place);
    if (sort) {
      const at = table.columns.findIndex((column) => column.key === sort.key);
      order.sort((a, b) => compareValues(table.rows[a][at], table.rows[b][at], sort.descending));
    }
    body.replaceChildren(
      ...order.map((place) =>
        h("tr", {}, table.columns.map((column, at) => cell(column, table.rows[place][at], table.texts[place][at]))),
      ),
    );
    const onSort = (key) => {
      sort = sorts[table.report] = resorted(sort, table.columns.find((column) => column.key === key));
      fill();
      head.querySelector(`[data-sort="${CSS.escape(key)}"]`).focus();
    };
    head.replaceChildren(h("tr", {}, table.columns.map((column) => heading(column, sort, onSort))));
  }

  fill();
  return h(
    "div",
    { class: "scroll", role: "region", tabindex: "0", "aria-label": table.caption },
    h("table", { "data-report": table.report }, h("caption", {}, table.caption), head, body),
  );
}
