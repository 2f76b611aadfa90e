// SPDX-License-Identifier: Apache-2.0
// The graph: modules as boxes that open in place, the calls in them, and the values that flow between them.

import { currentRun, graphOf, hasReference, handPairs, nodeId, otherSide, partner, selectedNode, whole } from "../data/graph.js";
import { legend, modes } from "../graph/colours.js";
import { warmUp } from "../graph/layout.js";
import { openMenu } from "../graph/menu.js";
import { openPalette } from "../graph/palette.js";
import { saveFile } from "../graph/saving.js";
import { stage, stageState } from "../graph/stage.js";
import { element, isNarrow, replace, span } from "../shared/dom.js";
import { language, say, toggleLanguage } from "../shared/language.js";
import { mainView } from "../shared/shell.js";
import { change, defaults, state } from "../shared/store.js";
import { chooseNode, unpair } from "../graph/pairing.js";

/** @typedef {import("../graph/menu.js").Entry} Entry */

const usualColour = hasReference ? "status" : "overflow";
const key = element("div", { class: "graph-legend" });
const voice = element("div", { class: "unseen", "aria-live": "polite", role: "status" });
const depth = element("input", { type: "range", id: "graph-depth", min: "0", max: "8", value: "0", "aria-label": say("Depth"), title: say("open everything down to a depth"), input: () => change({ depth: depth.value === "0" ? "" : depth.value, fold: "" }) });

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "graph", title: say("Graph"), place: "main", needs: ["graph"],
  state: { ...stageState, colour: usualColour, panes: hasReference && !isNarrow() ? "two" : "one" },
  uses: [...Object.keys(stageState), "view"],

  start(pane) {
    stage.panes.tabIndex = 0;
    stage.panes.setAttribute("role", "application");
    stage.panes.setAttribute("aria-label", say("Graph: arrow keys walk through the boxes, Enter opens, n goes to the next finding"));
    stage.onSay = (text) => { voice.textContent = text; };
    stage.onMenu = (box, at, event) => openMenu(entries(at, box), event.clientX, event.clientY);
    stage.panes.addEventListener("keydown", onKey);
    document.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      openPalette(commands);
    });
    replace(pane, toolbar(), stage.panes, key, voice);
    (window.requestIdleCallback ?? setTimeout)(warmUp);
  },

  render() {
    // A graph is that of one run: what is selected next is in the same one.
    if (!state.run && whole.cells.length > 1 && mainView() === "graph") change({ run: currentRun() });
    document.querySelectorAll("[data-graph-state]").forEach((/** @type {any} */ control) => {
      const value = state[control.dataset.graphState];
      if (control.type === "checkbox") control.checked = value === (control.dataset.on ?? ""); else control.value = value;
    });
    depth.value = state.depth || "0";
    void stage.render().then(showLegend);
  },

  keys: {
    "n": [say("next finding"), () => stage.step(1)], "p": [say("previous finding"), () => stage.step(-1)],
    "w": [say("zoom in"), () => zoom(1.25)], "s": [say("zoom out"), () => zoom(.8)],
    "a": [say("left"), () => pan(80)], "d": [say("right"), () => pan(-80)],
    "f": [say("all of it"), fit], "e": [say("open or close the selected box"), () => stage.toggleSelected()],
    "c": [say("light what reached the selected node"), cone], "m": [say("menu of the selected box"), menuOfSelected],
    "/": [say("search (Ctrl-K as well)"), () => openPalette(commands)],
  },
};

/** @param {number} by */
function zoom(by) { stage.shown.forEach(({ pane }) => pane.moveBy(0, 0, by)); }

/** @param {number} x */
function pan(x) { stage.shown.forEach(({ pane }) => pane.moveBy(x, 0)); }

function fit() { stage.shown.forEach(({ pane }) => pane.fit()); }

function cone() { change({ cone: state.cone === state.at ? "" : state.at }); }

function menuOfSelected() {
  const at = stage.shown.find(({ pane }) => pane.selected > 0);
  if (!at) return;
  const { left, top } = at.pane.canvas.getBoundingClientRect(), place = at.pane.placeOf(at.pane.selected);
  openMenu(entries(at, at.pane.selected), left + place.x + 20, top + place.y + 20);
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  /** @type {Record<string, () => void>} */
  const acts = {
    ArrowDown: () => stage.walk("next"), ArrowUp: () => stage.walk("previous"), ArrowRight: () => stage.walk("in"),
    ArrowLeft: () => stage.walk("out"), Enter: () => stage.toggleSelected(),
  };
  if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}

function showLegend() {
  replace(key, ...legend().map(({ fill, mark, words }) => element("span", {},
    element("i", { class: "swatch", style: `background:${fill}` }), mark ? ` ${mark}` : "", ` ${words}`)));
  key.hidden = !key.children.length;
}

// The tools above the panes

/** @param {string} name @param {string} label @param {[string, string][]} options */
function chooser(name, label, options) {
  const select = element("select", { "data-graph-state": name, "aria-label": label, title: label, change: () => change({ [name]: select.value }) },
    ...options.map(([value, text]) => element("option", { value }, text)));
  return select;
}

/** Returns a box to tick. @param {string} name of the state @param {string} on its value when ticked @param {string} off @param {string} text */
function ticked(name, on, off, text) {
  const box = element("input", { type: "checkbox", "data-graph-state": name, "data-on": on, change: () => change({ [name]: box.checked ? on : off }) });
  return element("label", {}, box, ` ${text}`);
}

/** @param {string} text @param {string} meaning @param {() => void} click */
function button(text, meaning, click) {
  return element("button", { type: "button", title: meaning, "aria-label": meaning, click }, text);
}

/** Closes the options by Escape. @param {KeyboardEvent} event */
function shut(event) {
  const options = /** @type {HTMLDetailsElement} */ (event.currentTarget);
  if (event.key !== "Escape" || !options.open) return;
  event.stopPropagation();
  options.open = false;
  options.querySelector("summary")?.focus();
}

function toolbar() {
  const micros = graphOf("target")?.microSteps ?? 1;
  const more = element("details", { class: "graph-more", keydown: shut }, element("summary", {}, say("more")), element("div", { class: "graph-options" },
    ticked("folded", "show", "", say("views, casts and metadata")), ticked("rolled", "", "no", say("roll identical layers up")),
    ticked("edges", "", "no", say("values that flow")), ticked("inferred", "", "no", say("inferred edges as well")),
    ticked("map", "", "no", say("map of the whole")), hasReference ? ticked("sync", "", "no", say("both sides move and open together")) : null,
    element("div", { class: "graph-saving" }, button("SVG", say("save the picture as SVG"), () => savePicture("svg")),
      button(say("SVG, all"), say("save all that is open as SVG"), () => savePicture("whole")),
      button("PNG", say("save the picture as PNG"), () => savePicture("png")), button(say("print"), say("print"), () => window.print()))));
  return element("div", { class: "graph-tools" },
    button(`⌕ ${say("search")}`, say("search (Ctrl-K as well)"), () => openPalette(commands)),
    chooser("colour", say("colour by"), modes()),
    chooser("half", say("halves"), [["", say("forward and backward")], ["forward", say("forward")], ["backward", say("backward")]]),
    hasReference ? chooser("panes", say("panes"), [["two", say("side by side")], ["one", say("merged")]]) : null,
    chooser("flow", say("flow"), [["", say("values")], ["gradient", say("gradients")]]),
    chooser("direction", say("direction"), [["down", "↓"], ["right", "→"]]),
    micros > 1 ? chooser("micro", say("micro step"), [["", say("all micro steps")],
      ...Array.from({ length: micros }, (_, place) => /** @type {[string, string]} */ ([String(place), say("micro step {}", place)]))]) : null,
    element("label", { class: "graph-depth" }, span("dim", say("depth")), depth),
    button("−", say("zoom out"), () => zoom(.8)), button("+", say("zoom in"), () => zoom(1.25)), button("⤢", say("all of it"), fit),
    button("↑", say("previous finding"), () => stage.step(-1)), button("↓", say("next finding"), () => stage.step(1)),
    button("◇", say("light what reached the selected node"), cone), more,
    button(language === "zh" ? "EN" : "中", say("language"), toggleLanguage));
}

/** @param {"svg" | "whole" | "png"} kind */
function savePicture(kind) {
  const name = `graph-${currentRun().replace(/\W+/g, "-")}`;
  stage.shown.forEach(({ pane, side }) => {
    const file = `${name}${stage.shown.length > 1 ? `-${side}` : ""}`;
    if (kind === "png") pane.canvas.toBlob((/** @type {Blob} */ blob) => saveFile(`${file}.png`, blob));
    else saveFile(`${file}.svg`, new Blob([pane.svg(kind === "whole")], { type: "image/svg+xml" }));
  });
}

// What can be done with a box, and with the page

/** @param {typeof stage.shown[0]} at @param {number} box @returns {Entry[]} */
function entries(at, box) {
  const { node, side, roll } = at.scene.item(box), id = nodeId(side, node.id);
  /** @type {Entry[]} */
  const found = [];
  if (at.scene.hasChildren(box) && box > 0) {
    found.push([stage.isOpen(at, box) ? say("close") : say("open"), () => stage.toggle(at, box)],
      [say("open all in it"), () => void stage.toggleAll(at, box, true)], [say("close all in it"), () => void stage.toggleAll(at, box, false)]);
  }
  if (roll) return found;
  found.push([say("light what reached it"), () => change({ cone: id })]);
  if (state.cone) found.push([say("light off"), () => change({ cone: "" })]);
  const pair = partner(side, node.id);
  if (pair >= 0) found.push([say("go to its partner"), () => change({ at: nodeId(otherSide(side), pair), part: "" })]);
  if (hasReference && pair < 0) found.push([say("match with a node of the other side"), () => chooseNode(side, node.id)]);
  if (side === "target" && handPairs().has(node.id)) found.push([say("undo the match"), () => unpair(node.id)]);
  found.push(...linked(node.id, side), [say("copy its name"), () => void navigator.clipboard?.writeText(node.forward || node.path || node.name)]);
  return found;
}

/** Returns entries that lead to what other ranks did in the same communication. @param {number} node @param {string} side @returns {Entry[]} */
function linked(node, side) {
  if (side !== "target") return [];
  const run = currentRun(), [step, ...rest] = run.split("/"), rank = rest.join("/");
  const link = whole.links.find((/** @type {any} */ each) => String(each.step) === step
    && each.members.some((/** @type {any[]} */ [where, which]) => String(where) === rank && which === node));
  return (link?.members ?? []).filter((/** @type {any[]} */ [where]) => String(where) !== rank).slice(0, 16).map((/** @type {any[]} */ [where, which]) => (
    [say("go to rank {}", where), () => change({ run: `${step}/${where}`, at: nodeId("target", which), fold: "", part: "" })]));
}

/** @returns {[string, () => void][]} */
function commands() {
  return [
    ...modes().map(([value, text]) => /** @type {[string, () => void]} */ ([`${say("colour by")}: ${text}`, () => change({ colour: value })])),
    [say("all of it"), fit], [say("next finding"), () => stage.step(1)], [say("print"), () => window.print()],
    [say("save the picture as SVG"), () => savePicture("svg")], [say("save the picture as PNG"), () => savePicture("png")],
    [say("as at the start"), () => change({ ...defaults, lang: state.lang ?? "", view: "graph" })],
    ...(selectedNode() ? [/** @type {[string, () => void]} */ ([say("light what reached the selected node"), cone])] : []),
  ];
}
