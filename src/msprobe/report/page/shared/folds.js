// SPDX-License-Identifier: Apache-2.0
// Parts of a view that a click on their heading opens and closes. The URL holds which ones are not as they are at first.

import { element } from "./dom.js";
import { change, toggled, words } from "./store.js";

export const folds = { open: "" };

/** @param {HTMLElement} part */
function isOpen(part) { return (part.dataset.usual === "open") !== words("open").includes(part.dataset.fold ?? ""); }

/**
 * @param {string} name its word in the URL
 * @param {string} heading
 * @param {Node} content
 * @param {boolean} [isOpenAtFirst]
 */
export function folded(name, heading, content, isOpenAtFirst = false) {
  /** @param {Event} event */
  const click = (event) => {
    event.preventDefault();
    change({ open: toggled("open", name) });
  };
  const part = element("details", { "data-fold": name, "data-usual": isOpenAtFirst ? "open" : "closed" },
    element("summary", { class: "dim", click }, heading), content);
  part.open = isOpen(part);
  return part;
}

/** Opens and closes all parts as the state says. */
export function showFolds() {
  /** @type {NodeListOf<HTMLDetailsElement>} */
  const parts = document.querySelectorAll("details[data-fold]");
  parts.forEach((part) => { part.open = isOpen(part); });
}
