// Where the page gets its content: a server, or what is embedded in this file. Both give the same documents.

import { compareValues } from "./tables.js";

const PAGE_ROWS = 50;
const RETRY_MS = 300;

export class Problem extends Error {}

// Content from `agent web`, with events that say what is new.
export class HttpTransport {
  constructor() {
    this.live = true;
  }

  async evaluations(query, onWait) {
    const asked = new URLSearchParams(query);
    asked.set("limit", String(PAGE_ROWS));
    for (;;) {
      const answer = await this.#get(`/api/evaluations?${asked}`);
      if (!answer.reading) return answer;
      onWait?.(answer.reading);
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }

  filters() {
    return this.#get("/api/filters");
  }

  evaluation(id) {
    return this.#get(`/api/evaluations/${encodeURIComponent(id)}`);
  }

  comparison(a, b) {
    return this.#get(`/api/compare?${new URLSearchParams({ a, b })}`);
  }

  about() {
    return this.#get("/api/about");
  }

  plans() {
    return this.#get("/api/plans");
  }

  plan(name, query) {
    return this.#get(`/api/plans/${encodeURIComponent(name)}?${query}`);
  }

  // Calls back on what is new, for as long as the page is open; the browser connects again by itself.
  watch({ onEvaluations, onRunning, onPlans, onState }) {
    const events = new EventSource(`${location.origin}/api/events`);
    events.addEventListener("evaluations", (event) => onEvaluations(JSON.parse(event.data)));
    events.addEventListener("running", (event) => onRunning(JSON.parse(event.data)));
    events.addEventListener("plans", (event) => onPlans(JSON.parse(event.data)));
    events.addEventListener("open", () => onState(true));
    events.addEventListener("error", () => onState(false));
  }

  async #get(path) {
    let response;
    try {
      response = await fetch(`${location.origin}${path}`, { headers: { Accept: "application/json" } });
    } catch {
      throw new Problem("The server does not answer. Is agent web still running?");
    }
    let content;
    try {
      content = await response.json();
    } catch {
      throw new Problem(`The server answered with status ${response.status} and no content.`);
    }
    if (!response.ok) throw new Problem(content.error ?? `The server answered with status ${response.status}.`);
    return content;
  }
}

// Content that `agent report` put into this file. It is unpacked when it is needed; nothing is fetched.
export class FileTransport {
  constructor() {
    this.live = false;
    this.parts = new Map();
  }

  async evaluations(query) {
    const all = await this.#part("list");
    const asked = new URLSearchParams(query);
    const chosen = all.rows.filter((row) => matches(all, row, asked));
    const key = asked.get("sort");
    if (key) {
      const at = all.columns.findIndex((column) => column.key === key);
      const descending = asked.get("order") !== "ascending";
      if (at >= 0) chosen.sort((a, b) => compareValues(a.values[at], b.values[at], descending));
    }
    const offset = Number(asked.get("offset") ?? 0);
    const rows = chosen.slice(offset, offset + PAGE_ROWS);
    return { ...all, rows, offset, limit: PAGE_ROWS, matched: chosen.length };
  }

  async filters() {
    return (await this.#part("list")).filters;
  }

  async evaluation(id) {
    const all = await this.#part("list");
    const place = all.rows.findIndex((row) => row.id === id);
    if (place < 0) throw new Problem(`This file holds no evaluation ${id}.`);
    const [shared, chunk] = await Promise.all([
      this.#part("shared"),
      this.#part(`details-${Math.floor(place / all.details_per_part)}`),
    ]);
    const resolve = (value) =>
      Array.isArray(value)
        ? value.map(resolve)
        : value !== null && typeof value === "object" && "$" in value
          ? shared[value.$]
          : value;
    return Object.fromEntries(Object.entries(chunk[id]).map(([name, value]) => [name, resolve(value)]));
  }

  async comparison(a, b) {
    const found = (await this.#part("comparisons"))[`${a} ${b}`];
    if (found) return found;
    return { missing: true, a: { given: a }, b: { given: b }, command: `agent compare ${a} ${b}` };
  }

  async about() {
    return (await this.#part("list")).about;
  }

  async plans() {
    throw new Problem("This file holds no plans; agent web shows them.");
  }

  plan() {
    return this.plans();
  }

  #part(name) {
    if (!this.parts.has(name)) {
      const element = document.getElementById(`part-${name}`);
      if (element === null) throw new Problem(`This file lacks its part ${name}; write the report again.`);
      this.parts.set(name, unpacked(element.textContent.trim()));
    }
    return this.parts.get(name);
  }
}

async function unpacked(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new Problem("This browser is too old for the report: it needs DecompressionStream (2023 or newer).");
  }
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const NOT_FILTERS = new Set(["sort", "order", "offset", "limit", "all", "id"]);

function matches(all, row, asked) {
  const id = asked.get("id");
  if (id && !row.id.startsWith(id.toLowerCase())) return false;
  for (const [key, wanted] of asked) {
    if (NOT_FILTERS.has(key) || !wanted) continue;
    const at = all.columns.findIndex((column) => column.key === key);
    if (at < 0 || String(row.values[at] ?? "").toLowerCase() !== wanted.toLowerCase()) return false;
  }
  return true;
}
