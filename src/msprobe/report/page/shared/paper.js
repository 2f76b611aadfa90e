// SPDX-License-Identifier: Apache-2.0
// Printing: what is folded on the screen is open on paper.

const media = window.matchMedia("print");
let isPrinted = false;
/** @type {(() => void)[]} */
const listeners = [];

/** Returns whether the page is laid out for paper. */
export function isPaper() { return isPrinted || media.matches; }

/** Calls back when the page goes to paper, and when it is back on the screen. @param {() => void} listener */
export function onPaper(listener) { listeners.push(listener); }

function tell() { listeners.forEach((listener) => listener()); }

/** @param {boolean} now */
function setPrinted(now) {
  isPrinted = now;
  tell();
}

export function startPaper() {
  /** @type {HTMLDetailsElement[]} */
  let opened = [];
  onPaper(() => {
    if (isPaper()) opened.push(...[...document.querySelectorAll("details")].filter((each) => !each.open));
    opened.forEach((each) => { each.open = isPaper(); });
    if (!isPaper()) opened = [];
  });
  // Browsers count the sheets before they tell of the change of the media: what came later would be cut.
  window.addEventListener("beforeprint", () => setPrinted(true));
  window.addEventListener("afterprint", () => setPrinted(false));
  media.addEventListener("change", tell);
}
