// The page: finds its content, follows its links, and hears what is new.

import { h } from "./dom.js";
import { FileTransport, HttpTransport } from "./transport.js";
import { listView } from "./list.js";
import { evaluationView } from "./evaluation.js";
import { comparisonView } from "./comparison.js";
import { plansView } from "./plans.js";
import { planView } from "./plan.js";

const inFile = document.getElementById("part-list") !== null;
const content = document.getElementById("content");

// Links are paths of the server; in a file they follow the number sign, as there is nothing else to ask.
const router = {
  href: (path) => (inFile ? `#${path}` : path),
  current: () => (inFile ? location.hash.slice(1) || "/" : location.pathname + location.search),
  go(path) {
    history.pushState(null, "", this.href(path));
    show(true);
  },
  replace(path) {
    history.replaceState(null, "", this.href(path));
    if (/^\/(\?|$)/.test(path)) page.lastList = path;
  },
};

const page = {
  transport: inFile ? new FileTransport() : new HttpTransport(),
  router,
  chosen: new Map(),
  total: null,
  running: [],
  onRunning: () => {},
  onEvaluations: () => {},
  onPlans: () => {},
  unchoose: () => {},
  announce(text) {
    document.getElementById("announcer").textContent = text;
  },
};

async function viewOf(path) {
  const [place, search = ""] = path.split("?");
  const query = new URLSearchParams(search);
  const id = /^\/evaluations\/([^/]+)$/.exec(place);
  if (id) return evaluationView(page, decodeURIComponent(id[1]));
  const plan = /^\/plans\/([^/]+)$/.exec(place);
  if (plan) return planView(page, decodeURIComponent(plan[1]), query);
  if (place === "/plans") return plansView(page);
  if (place === "/compare") return comparisonView(page, query);
  if (place === "/") {
    page.lastList = path;
    return listView(page, query);
  }
  throw new Error(`There is no page ${place}.`);
}

let shownPath = null;

async function show(moved) {
  const path = router.current();
  shownPath = path;
  page.onRunning = page.onEvaluations = page.onPlans = () => {};
  let view;
  try {
    view = await viewOf(path);
  } catch (error) {
    const back = h("a", { class: "back", href: router.href("/"), "data-path": "/" }, "← Evaluations");
    view = { title: "Not found", element: h("div", {}, back, h("h1", {}, "Nothing to show"), h("p", { class: "problem" }, error.message)) };
  }
  if (shownPath !== path) return;
  page.back = view.back ?? null;
  markPlans(path);
  document.title = `${view.title} · inferometer`;
  content.replaceChildren(view.element);
  document.body.dataset.ready = path;
  if (moved) {
    scrollTo(0, 0);
    content.focus({ preventScroll: true });
    page.announce(view.title);
  }
}

function markPlans(path) {
  const link = document.getElementById("plans");
  if (path.split("?")[0] === "/plans") link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

function follow(event) {
  const link = event.target.closest("a[data-path]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  router.go(link.dataset.path);
}

function onKey(event) {
  const typing = event.target.closest("input, select, textarea, [contenteditable]");
  if (event.key === "Escape") {
    if (typing && event.target.type !== "checkbox") event.target.blur();
    else if (page.back) router.go(page.back);
    else if (router.current() !== (page.lastList ?? "/") && !/^\/(\?|$)/.test(router.current())) router.go(page.lastList ?? "/");
    else page.unchoose();
  } else if (event.key === "/" && !typing) {
    const field = document.querySelector(".filters select, .filters input");
    if (field) {
      field.focus();
      event.preventDefault();
    }
  }
}

function watch() {
  const state = document.getElementById("state");
  let known = null;
  page.transport.watch({
    onState(connected) {
      state.textContent = connected ? "live" : "connection lost, trying again";
      state.className = `state ${connected ? "live" : "lost"}`;
    },
    async onEvaluations({ total }) {
      const before = known ?? page.total;
      known = total;
      if (before === total) return;
      await page.onEvaluations();
      const more = before === null ? 0 : total - before;
      if (more > 0) page.announce(`${more} new ${more === 1 ? "evaluation" : "evaluations"}`);
    },
    onRunning(running) {
      page.running = running;
      page.onRunning(running);
    },
    onPlans(plans) {
      document.getElementById("plans").hidden = plans.length === 0;
      page.onPlans(plans);
    },
  });
}

async function begin() {
  document.querySelector(".brand").setAttribute("href", router.href("/"));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    content.focus();
  });
  document.addEventListener("click", follow);
  document.addEventListener("keydown", onKey);
  addEventListener("popstate", () => show(true));
  addEventListener("hashchange", () => {
    if (inFile && router.current() !== shownPath) show(true);
  });
  await show(false);
  if (page.transport.live) watch();
  try {
    const about = await page.transport.about();
    document.getElementById("source").textContent = about.source;
    if (!page.transport.live) document.getElementById("state").textContent = about.as_of;
  } catch (error) {
    page.announce(error.message);
  }
}

begin();
