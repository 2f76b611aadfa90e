// SPDX-License-Identifier: Apache-2.0
// One place for the keys of all views, and the list of them.

import { byId, element, facts, replace } from "./dom.js";
import { say } from "./language.js";

/** @typedef {Record<string, [meaning: string, action: () => void]>} Keys */

/** @type {() => Keys} */
let keysNow = () => ({});

export function showHelp() {
  const dialog = byId("help");
  replace(dialog, element("h2", { id: "help-title" }, say("Keyboard")),
    facts(Object.entries(keysNow()).map(([key, [meaning]]) => [element("kbd", {}, key), say(meaning)])),
    element("button", { type: "button", class: "copy", click: () => dialog.close() }, say("close")));
  dialog.showModal();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || byId("help").open) return;
  if (/** @type {Element} */ (event.target).matches("input, select, textarea")) return;
  const key = keysNow()[event.key];
  if (!key) return;
  event.preventDefault();
  key[1]();
}

/** Listens for keys. @param {() => Keys} keys returns those that do something at present */
export function startKeyboard(keys) {
  keysNow = keys;
  const dialog = byId("help");
  dialog.addEventListener("click", (/** @type {Event} */ event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("keydown", onKey);
}
