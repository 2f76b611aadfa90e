// SPDX-License-Identifier: Apache-2.0
// Printing: what is folded on the screen is open on paper.

const paper = window.matchMedia("print");

export function startPaper() {
  /** @type {HTMLDetailsElement[]} */
  let opened = [];
  paper.addEventListener("change", () => {
    if (paper.matches) opened = [...document.querySelectorAll("details")].filter((each) => !each.open);
    opened.forEach((each) => { each.open = paper.matches; });
  });
}
