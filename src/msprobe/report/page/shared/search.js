// SPDX-License-Identifier: Apache-2.0
// A box to search in; what is typed is part of the state.

import { element } from "./dom.js";
import { change, listen, state } from "./store.js";

/**
 * Returns the box.
 * @param {object} options
 * @param {string} options.id
 * @param {string} options.name of the state that holds what is typed
 * @param {string} options.placeholder
 * @param {() => void} options.enter called when the search is done
 * @param {() => void} options.escape called to leave the box
 */
export function searchBox({ id, name, placeholder, enter, escape }) {
  const box = element("input", {
    id, type: "search", placeholder, autocomplete: "off", spellcheck: "false", "aria-label": "Search",
    input: () => change({ [name]: box.value }),
    keydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter") enter();
      if (event.key === "Escape") escape();
    },
  });
  listen(() => { if (box.value !== state[name]) box.value = state[name]; });
  return box;
}

/** Returns whether every word that is searched for is in a text in lower case. @param {string} name of the state */
export function matcher(name) {
  const asked = (state[name] ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  return (/** @type {() => string} */ text) => asked.every((word) => text().includes(word));
}
