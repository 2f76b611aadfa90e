// SPDX-License-Identifier: Apache-2.0
// What was found in one dump, in one sentence, and how much of it was judged.

import { verify } from "../data/verify.js";
import { element, replace, span } from "../shared/dom.js";

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "verdict", title: "Answer", place: "head", needs: ["verify"], uses: [],
  start(pane) {
    const word = verify.has_fault ? "wrong" : "no fault";
    replace(pane,
      element("h1", {}, span(`badge ${verify.has_fault ? "" : "equal"}`, word), verify.sentence),
      element("p", { id: "sides", class: "dim" }, `${verify.dump} · ${verify.closing}`),
      ...verify.notes.map((/** @type {string} */ note) => element("p", { class: "dim" }, note)));
  },
  render() {},
};
