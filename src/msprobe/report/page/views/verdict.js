// SPDX-License-Identifier: Apache-2.0
// The answer of a comparison in one line, and the choice of a step and rank.

import { severalRuns, summary } from "../data/comparison.js";
import { countDifferent, placeName } from "../data/words.js";
import { byId, element, replace, span } from "../shared/dom.js";
import { grouped, plural } from "../shared/format.js";
import { change, state } from "../shared/store.js";

const select = element("select", {
  id: "comparison", "aria-label": "Step and rank", change: () => change({ run: select.value }),
});

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "verdict", title: "Answer", place: "head", needs: ["summary"], state: { run: "" }, uses: ["run"],

  start(pane) {
    const { word, text } = answer();
    const sides = `${summary.target}  against  ${summary.reference}`;
    replace(pane, element("h1", {}, span(`badge ${word}`, word), text), element("p", { id: "sides", class: "dim" }, sides));
    if (!severalRuns) return;
    select.append(element("option", { value: "" }, "all steps and ranks"));
    for (const { step, rank } of summary.comparisons) {
      select.append(element("option", { value: `${step}/${rank}` }, placeName(step, String(rank))));
    }
    byId("tools").prepend(select);
  },

  render() { select.value = state.run; },
};

/** Returns the kind of the answer and its text. */
function answer() {
  const values = plural(summary.rows, "value"), different = countDifferent(summary.counts);
  const unread = summary.counts.unread ?? 0;
  if (summary.equal) {
    return { word: "equal", text: summary.rows ? `All ${values} agree` : "There was nothing to compare" };
  }
  if (!different) {
    return { word: "unread", text: `${grouped(unread)} of ${values} could not be read, the others agree` };
  }
  const more = unread ? `, ${grouped(unread)} could not be read` : "";
  return { word: "different", text: `${grouped(different)} of ${values} differ${more}` };
}
