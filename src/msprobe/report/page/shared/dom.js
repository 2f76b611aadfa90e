// SPDX-License-Identifier: Apache-2.0
// Elements of the document. Nothing from the data is ever read as markup. Labels are in the reader's language.

import { language, say } from "./language.js";

/** @typedef {Node | string | null | undefined} Child */

/** Attributes that are read out or shown. */
const labels = new Set(["title", "aria-label", "placeholder"]);

/** @type {(id: string) => any} */
export const byId = (id) => document.getElementById(id);

/** Whether the window shows one pane at a time, as on a phone. */
export const isNarrow = () => window.matchMedia("(max-width: 720px)").matches;

/**
 * Returns a new element: `element("p", {class: "dim"}, "text", child)`. Attributes that are functions listen.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...Child} children
 * @returns {any}
 */
export function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : labels.has(name) ? say(value) : value);
  }
  made.append(...present(children));
  return made;
}

/** @param {Child[]} children */
function present(children) {
  return /** @type {(Node | string)[]} */ (children.filter((child) => child !== null && child !== undefined && child !== ""));
}

/** @param {Element} parent @param {...Child} children */
export function replace(parent, ...children) { parent.replaceChildren(...present(children)); }

/** @param {string} className @param {...Child} children */
export function span(className, ...children) { return element("span", { class: className }, ...children); }

/** Returns a text in the reader's language, anything else as it is. @param {Child} child @returns {Child} */
const said = (child) => (typeof child === "string" ? say(child) : child);

/** @param {...Child} children */
export function title(...children) { return element("h3", {}, ...children.map(said)); }

/** @param {Child[]} texts */
export function items(texts, className = "plain-list") {
  return element("ul", { class: className }, ...texts.map((text) => element("li", {}, said(text))));
}

/** @param {string} text @param {() => void} click @param {Record<string, any>} [more] */
export function link(text, click, more = {}) {
  return element("button", { type: "button", class: "link", click, ...more }, said(text));
}

/** Returns what is known, with dots between. @param {...(string | null | undefined)} parts */
export function joined(...parts) { return parts.filter(Boolean).join(" · "); }

/**
 * Returns a table. A title that begins with a bar is set right, above numbers.
 * @param {string[]} titles
 * @param {Child[]} rows
 */
export function table(titles, rows) {
  const headings = titles.map((text) => {
    const attributes = { class: text.startsWith("|") ? "right" : "", scope: "col" };
    return element("th", attributes, say(text.replace("|", "")));
  });
  const parts = [element("thead", {}, element("tr", {}, ...headings)), element("tbody", {}, ...rows)];
  return element("div", { class: "scroll" }, element("table", {}, ...parts));
}

/** Returns labels with their values, without those that have none. @param {[Child, Child][]} pairs */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", { class: "facts" },
    ...known.flatMap(([label, value]) => [element("dt", {}, said(label)), element("dd", {}, value)]));
}

/** Returns a name that may be broken after its dots and underscores, not within words. @param {string} name */
export function breakable(name) {
  const pieces = name.split(/(?<=[._/,])/);
  return pieces.flatMap((piece, place) => (place ? [document.createElement("wbr"), piece] : [piece]));
}

/** @param {string} word @param {string} meaning */
export function pill(word, meaning) { return element("span", { class: `pill ${word}`, title: said(meaning) }, said(word)); }

/** @param {string} text */
export function copyButton(text) {
  const button = element("button", { type: "button", class: "copy", click: () => copy(text, button) }, say("copy"));
  return button;
}

/** @param {string} text */
export function command(text) {
  return element("div", { class: "command" }, element("code", {}, text), copyButton(text));
}

/**
 * A file opened by double click is no secure context in every browser: there the old way is left.
 * @param {string} text @param {HTMLElement} button
 */
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = say("copied");
  setTimeout(() => { button.textContent = say("copy"); }, 1200);
}

/** Says the labels that the document has from the start. */
export function sayLabels() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.title = say(document.title);
  for (const name of labels) for (const each of document.querySelectorAll(`[${name}]`)) each.setAttribute(name, say(each.getAttribute(name) ?? ""));
}

/** Tells the reader of something that went wrong. @param {string} text */
export function tell(text) {
  const reload = link("reload", () => window.location.reload()), notice = byId("notice");
  replace(notice, element("span", {}, say(text)), reload, link("dismiss", () => replace(notice)));
}
