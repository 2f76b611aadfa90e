// SPDX-License-Identifier: Apache-2.0
// The panel for one thing in full: what is selected, or an overview if nothing is.

import { breakable, copyButton, element, isNarrow, link } from "./dom.js";
import { change, state } from "./store.js";

/** @typedef {import("./shell.js").View} View */

/**
 * Selects what is to be shown in full.
 * @param {string} id
 * @param {object} [options]
 * @param {boolean} [options.stay] whether a narrow window goes on showing the list
 * @param {string} [options.part] of it, that is looked at
 */
export function open(id, { stay = false, part = "" } = {}) {
  const isCovered = document.body.dataset.shows === "side" || (isNarrow() && !stay);
  change({ at: id, part, ...(isCovered ? { pane: "detail" } : {}) });
}

export function close() { change({ at: "", part: "", pane: "detail" }); }

/**
 * Returns the links above and the name of what is shown.
 * @param {string} name
 * @param {...(Node | null | undefined)} links
 */
export function head(name, ...links) {
  return [
    element("div", { class: "crumbs" }, link("← overview", close, { title: "Escape" }), ...links),
    element("h2", { class: "mono" }, ...breakable(name), " ", copyButton(name)),
  ];
}

/**
 * Returns one view of several: the first that has something to show.
 * @param {View[]} views
 * @returns {View}
 */
export function detailView(views) {
  /** @type {HTMLElement} */
  let pane;
  let shown = "";
  return {
    name: "detail", title: views[views.length - 1].title, place: "detail", needs: [],
    state: { at: "", part: "" },
    uses: ["at", "part", "view", ...views.flatMap((view) => view.uses)],
    keys: Object.assign({}, ...views.map((view) => view.keys)),
    start(made) {
      pane = made;
      views.forEach((view) => view.start(pane));
    },
    render() {
      views.find((view) => view.shows?.() ?? true)?.render();
      if (shown !== state.at) pane.scrollTop = 0;
      shown = state.at;
    },
  };
}
