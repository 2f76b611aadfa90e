// SPDX-License-Identifier: Apache-2.0
// Borders between panes that can be moved. The shares of the window's width are part of the state.

import { byId, element } from "./dom.js";
import { change, state } from "./store.js";

const step = 4; // per cent, of an arrow key
const least = 10;

/** Returns the panes that are shown beside each other. @returns {HTMLElement[]} */
function panes() { return [...byId("panes").querySelectorAll(":scope > .pane:not([hidden])")]; }

/** Puts borders between the panes that are shown. */
export function placeBorders() {
  byId("panes").querySelectorAll(".splitter").forEach((/** @type {Element} */ each) => each.remove());
  panes().slice(1).forEach((pane, place) => pane.before(splitter(place)));
  sizePanes();
}

/** Gives the panes the widths that the state names; without any, those of the style sheet. */
export function sizePanes() {
  const shares = state.split.split("-").map(Number), shown = panes();
  const isUsable = shares.length === shown.length && shares.every((share) => share >= least);
  byId("panes").querySelectorAll(":scope > .pane").forEach((/** @type {HTMLElement} */ pane) => { pane.style.flexBasis = ""; });
  if (isUsable) shown.forEach((pane, place) => { pane.style.flexBasis = `${shares[place]}%`; });
}

/** @param {number} place of the pane to its left @returns {HTMLElement} */
function splitter(place) {
  const made = element("div", {
    class: "splitter", role: "separator", "aria-orientation": "vertical", tabindex: "0",
    "aria-label": "Width of the panes", title: "drag, or use the arrow keys; double click for the usual widths",
    dblclick: () => change({ split: "" }),
    pointerdown: (/** @type {PointerEvent} */ event) => drag(event, made, place),
    keydown: (/** @type {KeyboardEvent} */ event) => {
      const by = { ArrowLeft: -step, ArrowRight: step }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      move(place, by);
    },
  });
  return made;
}

/** Moves a border to the right by so many per cent. @param {number} place @param {number} by */
function move(place, by) {
  const widths = panes().map((pane) => pane.getBoundingClientRect().width);
  const total = widths.reduce((sum, width) => sum + width, 0);
  const shares = widths.map((width) => 100 * width / total);
  const room = Math.min(Math.max(by, least - shares[place]), shares[place + 1] - least);
  shares[place] += room;
  shares[place + 1] -= room;
  change({ split: shares.map((share) => share.toFixed(1)).join("-") });
}

/** @param {PointerEvent} event @param {HTMLElement} border @param {number} place */
function drag(event, border, place) {
  event.preventDefault();
  const total = panes().reduce((sum, pane) => sum + pane.getBoundingClientRect().width, 0);
  let from = event.clientX;
  border.classList.add("dragged");
  const onMove = (/** @type {PointerEvent} */ { clientX }) => {
    move(place, 100 * (clientX - from) / total);
    from = clientX;
  };
  const onEnd = () => {
    border.classList.remove("dragged");
    window.removeEventListener("pointermove", onMove);
  };
  window.addEventListener("pointermove", onMove);
  window.addEventListener("pointerup", onEnd, { once: true });
}
