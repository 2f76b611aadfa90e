// SPDX-License-Identifier: Apache-2.0
// A list of nodes beside the graph: those that are searched for, or that a filter lets through, in order of execution;
// and pairs made by hand.

import { currentRun, errorOf, findings, fullName, graphOf, handPairs, hasReference, measures, partner, selectedNode } from "../data/graph.js";
import { look } from "../graph/colours.js";
import { goTo, loadPairs, namedPairs, pairUp, savePairs, unpair } from "../graph/pairing.js";
import { title } from "../graph/scene.js";
import { stage } from "../graph/stage.js";
import { element, link, replace, span } from "../shared/dom.js";
import { folded } from "../shared/folds.js";
import { digits, plural } from "../shared/format.js";
import { say } from "../shared/language.js";
import { RowList } from "../shared/rows.js";
import { searchBox } from "../shared/search.js";
import { change, state, toggled, words } from "../shared/store.js";

/** @typedef {import("../data/graph.js").GraphNode} GraphNode */
/** @typedef {import("../data/graph.js").Side} Side */
/** @typedef {{side: Side, row: GraphNode}} Item */

const found = element("span", { id: "graph-found", class: "dim" });
const limitText = element("span", { class: "dim number" });
const limit = element("input", {
  type: "range", id: "graph-limit", min: "-12", max: "2", step: "0.25", "aria-label": say("threshold of the error"),
  input: () => change({ limit: limit.value === "-12" ? "" : limit.value }),
});
const measure = element("select", { "aria-label": say("which error"), title: say("which error"), change: () => change({ measure: measure.value }) },
  ...["", ...measures].map((name) => element("option", { value: name }, name ? say("{}: error above", say(name)) : say("error above"))));
const ticks = element("div", { class: "graph-ticks", role: "group", "aria-label": say("filter") });
const pairBox = element("div", {});
const message = element("p", { class: "dim", "aria-live": "polite" });
/** @type {RowList<Item>} */
let list;
/** @type {Item[]} */
let items = [];
let itemsFor = "";

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "graph_list", title: say("Find"), place: "side", needs: ["graph"], beside: ["graph", "graph_runs"],
  uses: ["find", "run", "levels", "limit", "at", "half", "colour", "pairs", "pairing", "measure"],

  start(pane) {
    list = new RowList({ name: "graph-row", label: say("Nodes"), height: 40, empty: say("Nothing fits."), draw, open: ({ side, row }) => goTo(side, row.id) });
    const search = searchBox({ id: "graph-search", name: "find", placeholder: say("search, or norm>1e4"), enter: () => move(1), escape: () => change({ find: "" }) });
    stage.onFound.add(() => { itemsFor = ""; render(); });
    replace(pane,
      element("div", { class: "graph-finder" }, search, ticks,
        hasReference ? element("label", { class: "graph-limit" }, measure, limit, limitText) : null,
        element("div", { class: "graph-moves" }, found, button("↑", say("previous in the list"), () => move(-1)), button("↓", say("next in the list"), () => move(1)))),
      list.box, hasReference ? element("div", { class: "graph-pairs" }, folded("pairs", say("match by hand"), pairBox)) : null);
  },

  render,
};

/** @param {string} text @param {string} meaning @param {() => void} click */
function button(text, meaning, click) { return element("button", { type: "button", class: "copy", title: meaning, "aria-label": meaning, click }, text); }

/** @param {number} by */
function move(by) { list.move(by); }

// What there is to tick: severities of a comparison, or levels of overflow.
const levels = hasReference ? ["introduced", "amplified", "inherited", "unmatched", "agrees"] : ["critical", "high", "medium"];

/** Returns the nodes that the search and the filter let through; findings without these. @returns {Item[]} */
function readItems() {
  if (state.find.trim() || stage.filter()) return stage.found.items.map(({ side, id }) => ({ side, row: /** @type {any} */ (graphOf(side)).node(id) }));
  return findings().map((id) => selectedNode(id)).filter((each) => each !== null && each.graph.isSeen(each.node))
    .map((each) => ({ side: /** @type {any} */ (each).side, row: /** @type {any} */ (each).graph.node(/** @type {any} */ (each).node) }));
}

function render() {
  const wanted = [state.find, currentRun(), state.levels, state.limit, state.half, state.pairs, state.measure].join(";");
  if (wanted !== itemsFor) { itemsFor = wanted; items = readItems(); }
  limit.value = state.limit || "-12";
  measure.value = state.measure;
  limitText.textContent = state.limit === "" ? say("any") : digits(Number((10 ** Number(state.limit)).toPrecision(2)));
  showTicks();
  found.textContent = state.find.trim() || stage.filter() ? plural(stage.found.total, "node") : plural(items.length, "finding");
  const selected = selectedNode();
  list.show(items, items.find(({ side, row }) => selected?.side === side && selected.node === row.id));
  if (hasReference) showPairs();
}

function showTicks() {
  const held = new Set(words("levels"));
  replace(ticks, ...levels.map((level) => element("label", {},
    element("input", { type: "checkbox", "data-level": level, checked: held.has(level), change: () => change({ levels: toggled("levels", level) }) }), ` ${say(level)}`)));
}

/** @param {Item} item */
function draw({ side, row }) {
  const seen = look(row, false), error = errorOf(row);
  const figure = hasReference ? (error === null ? row.status : digits(error)) : row.norm === null ? "" : digits(row.norm);
  return {
    attributes: { class: "row graph-row", title: fullName(row) },
    children: [
      element("span", { class: "mark", style: seen.fill ? `color:${seen.fill}` : null, "aria-hidden": "true" }, seen.mark || "·"),
      element("span", { class: "name" }, span("mono", title(row)), element("div", { class: "dim" }, `${side === "reference" ? `${say("reference")} · ` : ""}${fullName(row)}`)),
      span("number dim", figure ?? ""),
    ],
  };
}

// Pairs made by hand: what is chosen first waits for its partner.
function showPairs() {
  const [side, text] = state.pairing.split("/"), graph = side ? graphOf(/** @type {Side} */ (side)) : null;
  const waiting = graph ? element("p", {}, say("choose a node of the other side for {}", fullName(graph.node(Number(text)))), " ",
    link(say("cancel"), () => change({ pairing: "" }))) : null;
  const selected = selectedNode();
  const isReady = graph && selected && selected.side !== side && partner(selected.side, selected.node) < 0;
  const match = () => {
    if (!selected) return;
    if (selected.side === "target") pairUp(selected.node, Number(text)); else pairUp(Number(text), selected.node);
    change({ pairing: "" });
  };
  const start = selected && !graph && partner(selected.side, selected.node) < 0
    ? button(say("match the selected node"), say("then choose its partner"), () => change({ pairing: `${selected.side}/${selected.node}` })) : null;
  const pairs = namedPairs().map(({ target, names }) => element("li", {}, span("mono", `${names[0]} = ${names[1]}`), " ", link(say("undo"), () => unpair(target))));
  const load = () => void loadPairs().then((text) => { message.textContent = text; });
  replace(pairBox, element("p", { class: "dim" }, say("Nodes without a partner can be matched here, with all that has the same names in them.")), waiting,
    isReady ? button(say("match both"), say("match both"), match) : null, start, element("ul", { class: "plain-list" }, ...pairs.slice(0, 100)),
    element("div", {}, handPairs().size ? button(say("save pairs"), say("save pairs"), savePairs) : null, " ", button(say("load pairs"), say("load pairs"), load)), message);
}
