// SPDX-License-Identifier: Apache-2.0
// What was found in one dump, in one sentence, and how much of it was judged.

import { verify } from "../data/verify.js";
import { element, replace, span } from "../shared/dom.js";
import { say } from "../shared/language.js";

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "verdict", title: "Answer", place: "head", needs: ["verify"], uses: [],
  start(pane) {
    const word = verify.has_fault ? "wrong" : "no fault";
    replace(pane,
      element("h1", {}, span(`badge ${verify.has_fault ? "" : "equal"}`, say(word)), say(verify.sentence)),
      element("p", { id: "sides", class: "dim" }, `${verify.dump} · ${say(verify.closing)}`),
      ...verify.notes.map((/** @type {string} */ note) => element("p", { class: "dim" }, say(note))));
  },
  render() {},
};
