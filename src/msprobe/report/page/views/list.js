// SPDX-License-Identifier: Apache-2.0
// The operations of a comparison as a list, with filters.

import { say } from "../shared/language.js";
import {
  errorShare, filterNames, filters, inRun, noFilters, operations, originNames, selected, severalRuns, shownOperations, summary,
} from "../data/comparison.js";
import { agrees, isDifference, mark, placeName, words } from "../data/words.js";
import { open } from "../shared/detail.js";
import { element, joined, replace, span } from "../shared/dom.js";
import { digits, grouped, plural } from "../shared/format.js";
import { RowList } from "../shared/rows.js";
import { searchBox } from "../shared/search.js";
import { column, sections } from "../shared/sections.js";
import { showMain } from "../shared/shell.js";
import { change, state, toggled, words as chosen } from "../shared/store.js";

/** @typedef {import("../data/comparison.js").Operation} Operation */

/** @type {RowList<Operation>} */
const list = new RowList({
  name: "row", label: "Operations", height: 46, draw: drawRow,
  open: (operation, isMove) => open(operation.id, { stay: isMove }),
  empty: say(summary.rows ? "Nothing fits these filters." : "There is nothing to show."),
});
const search = searchBox({
  id: "search", name: "q", placeholder: say("Search names, modules, sources  ( / )"), escape: () => list.box.focus(),
  enter: () => { if (list.items.length) open(list.items[0].id); },
});
const sort = element("select", { id: "sort", "aria-label": say("Order"), change: () => change({ sort: sort.value }) },
  element("option", { value: "interest" }, say("most interesting first")),
  element("option", { value: "order" }, say("order of execution")),
  element("option", { value: "error" }, say("largest error first")));
const chips = element("div", { id: "chips", class: "chips" });
const found = element("span", { id: "found", role: "status" });
const clear = element("button", { id: "clear", type: "button", class: "link", click: () => change(noFilters) }, say("show all"));

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "list", title: "Operations", place: "main", needs: ["operations", "values"],
  state: filters, uses: [...filterNames, "at"],

  start(pane) {
    const headings = ["", "operation", "went in", "came out"].map((text) => element("span", {}, text && say(text)));
    replace(pane,
      element("div", { class: "filters" },
        element("div", { class: "search" }, search, sort), chips,
        element("p", { class: "found" }, found, " ", clear), limitNote()),
      element("div", { class: "columns", "aria-hidden": "true" }, ...headings),
      list.box);
    replace(chips, ...(summary.equal ? [] : [onlyDifferences()]),
      ...chipGroup("origin", originNames, summary.origins, words.origins, 1),
      ...chipGroup("status", Object.keys(words.statuses), summary.counts, words.statuses),
      ...kindChips());
  },

  render() {
    const shown = shownOperations();
    list.show(shown, selected());
    const all = operations.filter(inRun).length;
    const part = shown.length === all ? "all" : `${grouped(shown.length)} of`;
    found.textContent = `${part} ${plural(all, "operation")}${state.module ? say(" in {}", state.module) : ""}`;
    clear.hidden = shown.length === all;
    sort.value = state.sort;
    for (const chip of chips.querySelectorAll(".chip")) {
      const { filter, word } = chip.dataset;
      const isOn = filter === "differences" ? state.differences === "only" : chosen(filter).includes(word);
      chip.setAttribute("aria-pressed", String(isOn));
    }
  },

  keys: {
    "/": ["search", () => { showMain(); search.focus(); search.select(); }],
    "j": ["next operation (also ↓)", () => list.move(1)],
    "k": ["previous operation (also ↑)", () => list.move(-1)],
    "d": ["only differences, or all", toggleDifferences],
  },
};

function toggleDifferences() { change({ differences: state.differences === "only" ? "all" : "only" }); }

/** @param {Operation} operation */
function drawRow(operation) {
  const where = joined(operation.kind === "parameter" ? say("parameter") : "",
    operation.module || say("outside of modules"), say(operation.source ?? ""),
    severalRuns ? placeName(operation.step, operation.rank) : "");
  const came = operation.match === "unmatched" ? "" : operation.unmeasuredIn ?? digits(operation.errorIn);
  const verdict = operation.origin ?? (agrees(operation.status) ? "" : operation.status);
  return {
    attributes: { class: `row ${operation.origin === "introduced" ? "is-introduced" : ""}`, title: operation.name },
    children: [
      mark(operation.group, words.origins[operation.origin ?? ""] ?? words.statuses[operation.status]),
      element("div", { class: "what" },
        element("div", { class: "title" }, ...titleParts(operation)),
        element("div", { class: "where" }, verdict ? span(operation.group, say(verdict)) : "", verdict ? " · " : "", where)),
      element("div", { class: "in number" }, came),
      outCell(operation),
    ],
  };
}

// Where room is short the API's prefix goes first, the number and the direction of the call never.
/** @param {Operation} operation */
function titleParts({ title: text, direction }) {
  const [, prefix = "", name = "", call = ""] = text.match(/^([A-Z]\w*\.)?(.*?)(\.\d+)?$/s) ?? [];
  return [span("prefix", prefix), span("name", name), span("call", call), span("direction", say(direction))];
}

/** @param {Operation} operation */
function outCell(operation) {
  if (operation.match === "unmatched") {
    return element("div", { class: "out unmatched" }, say(operation.status === "added" ? "target only" : "reference only"));
  }
  const text = operation.unmeasuredOut ?? digits(operation.errorOut);
  const filled = operation.unmeasuredOut ? 1 : errorShare(operation.errorOut);
  return element("div", { class: `out number ${operation.group === "inherited" ? "" : operation.group}` }, text,
    element("div", { class: `bar ${operation.group}` }, element("i", { style: `width:${(100 * filled).toFixed(0)}%` })));
}

/**
 * @param {string} name
 * @param {string[]} all
 * @param {Record<string, number>} counts
 * @param {Record<string, string>} meanings
 */
function chipGroup(name, all, counts, meanings, least = 2) {
  const present = all.filter((word) => counts[word]);
  if (present.length < least) return [];
  return [element("span", { class: "group" }, say(name)), ...present.map((word) => element("button", {
    type: "button", class: "chip", title: meanings[word] && say(meanings[word]), "data-filter": name, "data-word": word,
    click: () => {
      const held = toggled(name, word);
      // A reader who asks for equal values wants to see them.
      const asksForEqual = name === "status" && held.includes(word) && !isDifference(word);
      change({ [name]: held, ...(asksForEqual ? { differences: "all" } : {}) });
    },
  }, say(word.replace("_", " ")), " ", element("span", { class: "count" }, grouped(counts[word]))))];
}

function onlyDifferences() {
  return element("button", { type: "button", class: "chip", "data-filter": "differences", click: toggleDifferences },
    say("only differences"));
}

function kindChips() {
  /** @type {Record<string, number>} */
  const counts = {};
  const kind = column("values", "kind");
  for (let row = 0; row < sections.shown.rows; row += 1) counts[kind(row)] = (counts[kind(row)] ?? 0) + 1;
  return chipGroup("kind", Object.keys(counts), counts, {});
}

function limitNote() {
  const { rows, of_rows: all } = sections.shown;
  if (rows === all) return null;
  return element("p", { id: "limit", class: "limit" },
    `Showing the ${grouped(rows)} most interesting of ${grouped(all)} values; `
    + "all are in the table file. Counts, modules and plots are of all.");
}
