// SPDX-License-Identifier: Apache-2.0
// The results of one dump as a list, with filters.

import { filters, results, selected, shownResults, verdictOf, verdicts, verify } from "../data/verify.js";
import { mark, placeName } from "../data/words.js";
import { open } from "../shared/detail.js";
import { element, joined, replace, span } from "../shared/dom.js";
import { digits, grouped, plural } from "../shared/format.js";
import { say } from "../shared/language.js";
import { RowList } from "../shared/rows.js";
import { searchBox } from "../shared/search.js";
import { showMain } from "../shared/shell.js";
import { change, state, toggled, words } from "../shared/store.js";

/** @typedef {import("../data/verify.js").Result} Result */

/** @type {RowList<Result>} */
const list = new RowList({
  name: "row", label: "Results", height: 46, draw: drawRow, empty: "Nothing fits these filters.",
  open: (result, isMove) => open(result.id, { stay: isMove }),
});
const search = searchBox({
  id: "search", name: "q", placeholder: "Search names, types, sources  ( / )", escape: () => list.box.focus(),
  enter: () => { if (list.items.length) open(list.items[0].id); },
});
const sort = element("select", { id: "sort", "aria-label": "Order", change: () => change({ sort: sort.value }) },
  element("option", { value: "error" }, say("largest error first")),
  element("option", { value: "order" }, say("order of execution")));
const chips = element("div", { id: "chips", class: "chips" });
const found = element("span", { id: "found", role: "status" });
const clear = element("button", { id: "clear", type: "button", class: "link", click: () => change({ ...filters, sort: state.sort }) }, say("show all"));

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "list", title: "Results", place: "main", needs: ["verify", "results"], state: filters,
  uses: [...Object.keys(filters), "at"],
  start(pane) {
    const present = Object.keys(verdicts).filter((word) => results.some((each) => verdictOf(each) === word));
    replace(chips, ...present.map(chip));
    replace(pane,
      element("div", { class: "filters" },
        element("div", { class: "search" }, search, sort), chips,
        element("p", { class: "found" }, found, " ", clear), limitNote()),
      list.box);
  },
  render() {
    const shown = shownResults();
    list.show(shown, selected());
    const of = plural(results.length, "result");
    found.textContent = joined(shown.length === results.length ? of : say("{} of {}", grouped(shown.length), of), state.operator);
    clear.hidden = shown.length === results.length;
    sort.value = state.sort;
    for (const one of chips.querySelectorAll(".chip")) {
      one.setAttribute("aria-pressed", String(words("verdict").includes(one.dataset.word)));
    }
  },
  keys: {
    "/": ["search", () => { showMain(); search.focus(); search.select(); }],
    "j": ["next result (also ↓)", () => list.move(1)],
    "k": ["previous result (also ↑)", () => list.move(-1)],
  },
};

/** @param {string} word */
function chip(word) {
  const count = results.filter((each) => verdictOf(each) === word).length;
  return element("button", {
    type: "button", class: "chip", title: verdicts[word][1], "data-word": word,
    click: () => change({ verdict: toggled("verdict", word) }),
  }, say(word), " ", span("count", grouped(count)));
}

/** @param {Result} result */
function drawRow(result) {
  const word = verdictOf(result), [group, meaning] = verdicts[word];
  const where = joined(say(result.reason ?? word), result.source, result.generated ? say("generated data") : "",
    verify.places > 1 ? placeName(result.step, result.rank) : "");
  return {
    attributes: { class: `row result ${word === "wrong" ? "is-introduced" : ""}`, title: result.record },
    children: [
      mark(group, say(meaning)),
      element("div", { class: "what" },
        element("div", { class: "title" }, span("name", result.record), span("direction", result.slot)),
        element("div", { class: "where" }, where)),
      element("div", { class: "out number" }, result.ulps === null ? "" : `${digits(result.ulps)} ulp`),
      element("div", { class: `out number ${group}` }, result.ratio === null ? "" : `${digits(result.ratio)} ×`),
    ],
  };
}

function limitNote() {
  if (results.length === verify.results) return null;
  return element("p", { id: "limit", class: "limit" },
    say("Showing the {} largest errors of {} results; verify.json has all.", grouped(results.length), grouped(verify.results)));
}
