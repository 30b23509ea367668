// The table of evaluations: filters, sorting, pages, what is running now, and the choice of two to compare.

import { chip, h, shown, verdict } from "./dom.js";
import { heading, resorted } from "./tables.js";

const FILTERS = [
  ["model_name", "Model"],
  ["framework_name", "Framework"],
  ["kind", "Kind"],
  ["batch_size", "Batch size"],
  ["hostname", "Host"],
  ["stability", "Stability"],
];

function cellOf(page, row, column, value, text) {
  if (column.key === "model_name") {
    const path = `/evaluations/${encodeURIComponent(row.id)}`;
    return [
      h("a", { href: page.router.href(path), "data-path": path, tabindex: "-1" }, String(value)),
      h("span", { class: "under" }, row.under.flatMap((part, at) => [at ? " · " : "", h("span", {}, part)])),
    ];
  }
  if (column.key === "stability") return verdict(value, row.conditions);
  if (column.key === "created_at") return h("time", { datetime: value }, text);
  if (column.key === "status" && value !== "complete") return chip("disturbed", value);
  if (column.key === "id") return h("code", { title: value }, value.slice(0, 8));
  if (column.key === "invalid" && value) return chip("invalid", "INVALID", value);
  return shown(value, text);
}

function rowOf(page, list, columns, row, onChosen) {
  const box = h("input", {
    type: "checkbox",
    "aria-label": `Compare ${row.name}`,
    onchange: (event) => onChosen(row, event.target.checked),
  });
  box.checked = page.chosen.has(row.id);
  const values = new Map(list.columns.map((column, at) => [column.key, [row.values[at], row.texts[at]]]));
  const invalid = values.get("invalid")?.[0];
  return h(
    "tr",
    { "data-id": row.id, tabindex: "-1" },
    h("td", { class: "choose" }, box),
    columns.map((column) => {
      const [value, text] = values.get(column.key);
      const more = column.key === "stability" && invalid ? [" ", chip("invalid", "INVALID", invalid)] : [];
      return h(
        "td",
        { class: [column.numeric ? "number" : "", column.detail ? "wide" : "", `of-${column.key}`].join(" ").trim(), "data-key": column.key },
        cellOf(page, row, column, value, text),
        more,
      );
    }),
  );
}

// Arrow keys go from row to row, Enter opens, the space bar chooses; the table is one stop of the tab key.
function withKeys(page, body) {
  const rows = () => [...body.rows];
  const focus = (row) => {
    if (!row) return;
    rows().forEach((each) => (each.tabIndex = -1));
    row.tabIndex = 0;
    row.focus();
  };
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    if (event.target !== row || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = rows();
    const place = all.indexOf(row);
    const to = { ArrowDown: place + 1, j: place + 1, ArrowUp: place - 1, k: place - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to !== undefined) focus(all[to]);
    else if (event.key === "Enter") page.router.go(`/evaluations/${encodeURIComponent(row.dataset.id)}`);
    else if (event.key === " ") row.querySelector("input").click();
    else return;
    event.preventDefault();
  });
  body.addEventListener("click", (event) => {
    if (event.target.closest("a, input, button") || String(getSelection())) return;
    const row = event.target.closest("tr");
    if (row) page.router.go(`/evaluations/${encodeURIComponent(row.dataset.id)}`);
  });
  const first = body.rows[0];
  if (first) first.tabIndex = 0;
}

function filterBar(filters, query, onFilter) {
  const selects = FILTERS.filter(([key]) => (filters[key] ?? []).length > 1 || query.get(key)).map(([key, label]) => {
    const known = [...new Set([...(filters[key] ?? []), ...(query.get(key) ? [query.get(key)] : [])])].map(String);
    const select = h(
      "select",
      { id: `filter-${key}`, onchange: (event) => onFilter(key, event.target.value) },
      h("option", { value: "" }, "any"),
      known.map((value) => h("option", { value, selected: value === query.get(key) }, value)),
    );
    return h("span", { class: "field" }, h("label", { for: `filter-${key}` }, label), select);
  });
  const id = h("input", {
    id: "filter-id",
    type: "search",
    value: query.get("id") ?? "",
    placeholder: "beginning",
    autocomplete: "off",
    spellcheck: "false",
    size: "10",
    onchange: (event) => onFilter("id", event.target.value.trim()),
  });
  const any = FILTERS.some(([key]) => query.get(key)) || query.get("id");
  return h(
    "form",
    { class: "filters", role: "search", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    selects,
    h("span", { class: "field" }, h("label", { for: "filter-id" }, "Id"), id),
    any ? h("button", { type: "button", class: "quiet", onclick: () => onFilter(null) }, "Clear") : null,
  );
}

export function runningPanel() {
  const list = h("ul", {});
  const panel = h("section", { class: "running", "aria-label": "Running now", hidden: true }, h("h2", {}, "Running now"), list);
  function show(running) {
    panel.hidden = running.length === 0;
    list.replaceChildren(
      ...running.map((each) =>
        h(
          "li",
          {},
          h("strong", {}, each.title),
          h("span", { class: "detail" }, each.detail),
          each.total
            ? h("progress", { max: each.total, value: Math.min(each.done, each.total), "aria-label": `Progress of ${each.title}` })
            : null,
          h("span", { class: "at" }, each.text),
        ),
      ),
    );
  }
  return { panel, show };
}

function selection(page, onCompare) {
  const bar = h("div", { class: "selection", hidden: true });
  function show() {
    const names = [...page.chosen.values()];
    bar.hidden = names.length === 0;
    const hint =
      names.length === 1
        ? `${names[0]} is A. Choose another evaluation as B.`
        : names.length === 2
          ? `A: ${names[0]}  ·  B: ${names[1]}`
          : "";
    bar.replaceChildren(
      h("span", {}, hint),
      h("button", { type: "button", class: "main", disabled: names.length !== 2, onclick: onCompare }, "Compare"),
      h("button", { type: "button", class: "quiet", onclick: () => page.unchoose() }, "Clear"),
    );
  }
  return { bar, show };
}

export async function listView(page, query) {
  const view = h("div", { class: "list" });
  const running = runningPanel();
  const problem = h("p", { class: "problem", hidden: true, role: "alert" });
  const table = h("table", { id: "evaluations" });
  const region = h("div", { class: "scroll", role: "region", "aria-label": "Evaluations" }, table);
  const count = h("span", { class: "count" });
  const pager = h("nav", { class: "pager", "aria-label": "Pages" });
  const filters = h("div", {});
  const unread = h("details", { class: "unread", hidden: true });
  let latest = 0;

  const changed = (changes) => {
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === "" || value === undefined) query.delete(key);
      else query.set(key, String(value));
    }
    const text = query.toString();
    page.router.replace(text ? `/?${text}` : "/");
    return fill();
  };
  const onFilter = async (key, value) => {
    const cleared = Object.fromEntries([...FILTERS.map(([name]) => [name, null]), ["id", null]]);
    await changed({ ...(key === null ? cleared : { [key]: value }), offset: null });
    await fillFilters();
    if (key) document.getElementById(`filter-${key}`)?.focus();
  };
  const chosen = selection(page, () => {
    const [a, b] = [...page.chosen.keys()];
    page.router.go(`/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`);
  });
  const onChosen = (row, checked) => {
    if (checked && page.chosen.size === 2) page.chosen.delete([...page.chosen.keys()][1]);
    if (checked) page.chosen.set(row.id, row.name);
    else page.chosen.delete(row.id);
    for (const box of table.querySelectorAll("tbody tr")) {
      box.querySelector("input").checked = page.chosen.has(box.dataset.id);
    }
    chosen.show();
    page.announce(`${page.chosen.size} of 2 chosen`);
  };
  page.unchoose = () => {
    page.chosen.clear();
    for (const box of table.querySelectorAll("tbody input")) box.checked = false;
    chosen.show();
  };

  async function fillFilters() {
    filters.replaceChildren(filterBar(await page.transport.filters(), query, onFilter));
  }

  async function fill() {
    const mine = ++latest;
    let list;
    try {
      list = await page.transport.evaluations(query.toString(), (reading) => {
        if (mine === latest) count.textContent = `reading ${reading.done} of ${reading.total} to sort them…`;
      });
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      return;
    }
    if (mine !== latest) return;
    problem.hidden = true;
    show(list);
  }

  function show(list) {
    page.total = list.total;
    const focused = document.activeElement?.closest?.("#evaluations tbody tr")?.dataset.id;
    const all = query.get("all") === "1";
    const columns = list.columns.filter((column) => all || !column.detail);
    const sort = { key: list.sort?.key ?? query.get("sort") ?? "created_at", descending: query.get("order") !== "ascending" };
    const onSort = async (key) => {
      const next = resorted(sort, list.columns.find((column) => column.key === key));
      if (key === "created_at" && sort.key !== key) next.descending = true;
      const usual = next.key === "created_at" && next.descending;
      await changed({ sort: usual ? null : next.key, order: next.descending ? null : "ascending", offset: null });
      table.querySelector(`[data-sort="${CSS.escape(key)}"]`)?.focus();
      const header = list.columns.find((column) => column.key === key).header;
      page.announce(`sorted by ${header}, ${next.descending ? "descending" : "ascending"}`);
    };
    const headings = columns.map((column) => {
      const cell = heading(column, sort, onSort);
      cell.classList.add(`of-${column.key}`);
      return cell;
    });
    const body = h("tbody", {}, list.rows.map((row) => rowOf(page, list, columns, row, onChosen)));
    table.replaceChildren(
      h("caption", { class: "unseen" }, "Evaluations. Arrow keys go from row to row, Enter opens one."),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "choose" }, h("span", { class: "unseen" }, "Compare")), headings)),
      body,
    );
    withKeys(page, body);
    if (focused) {
      const again = body.querySelector(`tr[data-id="${CSS.escape(focused)}"]`);
      again?.focus();
    }
    const end = list.offset + list.rows.length;
    const of = list.matched === list.total ? `${list.total}` : `${list.matched} (of ${list.total})`;
    count.textContent = list.matched === 0 ? (list.total ? `none of ${list.total} matches` : "no evaluation yet") : `${list.offset + 1}–${end} of ${of}`;
    const step = (label, offset, possible) =>
      h("button", { type: "button", class: "quiet", disabled: !possible, onclick: () => changed({ offset: offset || null }) }, label);
    pager.replaceChildren(
      step("Newer", Math.max(0, list.offset - list.limit), list.offset > 0),
      step("Older", list.offset + list.limit, end < list.matched),
      h(
        "button",
        { type: "button", class: "quiet", "aria-pressed": String(all), onclick: () => changed({ all: all ? null : 1 }) },
        "All columns",
      ),
    );
    unread.hidden = list.unreadable.length === 0;
    unread.replaceChildren(
      h("summary", {}, `${list.unreadable.length} left out, because they cannot be read`),
      h("ul", {}, list.unreadable.map((text) => h("li", {}, text))),
    );
    chosen.show();
    region.tabIndex = 0;
  }

  view.append(
    h("h1", { class: "unseen" }, "Evaluations"),
    running.panel,
    h("div", { class: "above" }, filters, h("span", { class: "counts" }, count, pager)),
    problem,
    region,
    unread,
    chosen.bar,
  );
  page.onRunning = running.show;
  page.onEvaluations = async () => {
    const before = new Set([...table.querySelectorAll("tbody tr")].map((row) => row.dataset.id));
    await fill();
    for (const row of table.querySelectorAll("tbody tr")) row.classList.toggle("fresh", !before.has(row.dataset.id));
    await fillFilters();
  };
  running.show(page.running);
  await Promise.all([fill(), fillFilters()]);
  return { title: "Evaluations", element: view };
}
