// Elements. Content is text: nothing that was measured, named or stored is ever read as markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" && tag === "input") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

// A value as its report prints it. A number stays readable for machines, with all of its digits.
export function shown(value, text) {
  const words = text ?? value;
  if (words === null || words === undefined || words === "") {
    return h("span", { class: "none", title: "not known" }, "–");
  }
  return typeof value === "number" ? h("data", { value: String(value) }, String(words)) : String(words);
}

const MARKS = { stable: "●", disturbed: "▲", unstable: "◆", "not known": "○" };

// The verdict on the conditions: a shape and a word, so that no one depends on the colour.
export function verdict(stability, reason) {
  if (!stability) return shown(null);
  const kind = stability.replace(/\W/g, "-");
  return h(
    "span",
    { class: `chip ${kind}`, title: reason || null },
    h("span", { "aria-hidden": "true" }, MARKS[stability] ?? "○"),
    ` ${stability}`,
  );
}

export function chip(kind, text, title) {
  return h("span", { class: `chip ${kind}`, title }, text);
}

export function copyButton(text, announce) {
  const button = h("button", { type: "button", class: "quiet" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      announce("copied");
      button.textContent = "Copied";
    } catch {
      announce("copying is not allowed here; select the text instead");
      button.textContent = "Select and copy";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
}

export function commandLine(line, announce) {
  return h("div", { class: "command" }, h("code", { tabindex: "0" }, line), copyButton(line, announce));
}
