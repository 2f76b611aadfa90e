// SPDX-License-Identifier: Apache-2.0
// What perturbing the operators of a run has shown, in one sentence, and what it left out.

import { element, replace, span } from "../shared/dom.js";
import { sections } from "../shared/sections.js";

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "verdict", title: "Answer", place: "head", needs: ["perturbation"], uses: [],
  start(pane) {
    /** @type {any} */
    const { worst, sentence, left_out: leftOut } = sections.perturbation;
    replace(pane,
      element("h1", {}, span(`badge ${worst ? "" : "equal"}`, worst || "no finding"), sentence),
      ...leftOut.map((/** @type {string} */ line) => element("p", { class: "dim" }, line)));
  },
  render() {},
};
