// SPDX-License-Identifier: Apache-2.0
// A batch of data, or an event around the optimizer, on both sides.

import { say } from "../shared/language.js";
import { severalRuns } from "../data/comparison.js";
import { entryAt, entryId } from "../data/lanes.js";
import { placeName } from "../data/words.js";
import { head, open } from "../shared/detail.js";
import { breakable, element, link, pill, replace, table, title } from "../shared/dom.js";
import { state } from "../shared/store.js";

/** @type {HTMLElement} */
let pane;

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "facts", title: "Training", place: "detail", needs: ["lanes"], uses: [],
  shows: () => entryAt(state.at) !== null,

  start(made) { pane = made; },

  render() {
    const found = entryAt(state.at);
    if (!found) return;
    const { lane, entry } = found;
    const where = placeName(lane.step, lane.rank);
    const rows = entry.facts.map(([name, target, reference]) => factRow(name, target, reference));
    replace(pane, ...head(severalRuns ? `${say(entry.name)}, ${where}` : say(entry.name)),
      element("div", {}, entry.same ? pill("equal", "the same on both sides") : pill("differs", "not the same")),
      title("Both sides, what differs first"),
      entry.facts.length ? table(["", "target", "reference"], rows) : element("p", { class: "dim" }, say("nothing is known of it")),
      title("The same step"), ...neighbours(lane));
  },
};

/** @param {string} name @param {string | null} target @param {string | null} reference */
function factRow(name, target, reference) {
  const mood = target === reference ? "mono" : "mono apart";
  const side = (/** @type {string | null} */ text) => element("td", { class: mood }, ...breakable(text ?? "–"));
  return element("tr", {}, element("td", { class: "dim fact" }, say(name)), side(target), side(reference));
}

/** @param {import("../data/lanes.js").Lanes} lane */
function neighbours(lane) {
  return [/** @type {const} */ ("data"), /** @type {const} */ ("events")].flatMap((kind) => lane[kind].map((entry, place) => (
    element("div", {}, link(entry.name, () => open(entryId(lane, kind, place))), entry.same ? "" : ` ${say("differs")}`))));
}
