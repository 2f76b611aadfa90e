// SPDX-License-Identifier: Apache-2.0
// The panes with pictures of the run that is shown: two beside each other, or one. What is open, selected and lit.

import {
  ask, currentRun, findings, firstNode, fullName, graphOf, handPairs, hasReference, kind, nodeId, otherSide, partner, selectedNode,
} from "../data/graph.js";
import { find } from "../data/graph_search.js";
import { element, joined, replace } from "../shared/dom.js";
import { digits, grouped } from "../shared/format.js";
import { say } from "../shared/language.js";
import { change, state, toggled, words } from "../shared/store.js";
import { look, scaleColours } from "./colours.js";
import { evidence, Pane } from "./pane.js";
import { spoken } from "./picture.js";
import { Scene, title } from "./scene.js";

/** @typedef {import("../data/graph.js").Side} Side */
/** @typedef {import("../data/graph.js").Graph} Graph */
/** @typedef {import("./nest.js").Line} Line */

/** What decides which boxes there are. */
const contents = ["run", "panes", "folded", "rolled", "edges", "inferred", "micro", "direction"];

/** The state of the pictures. */
export const stageState = {
  run: "", at: "", panes: "two", folded: "", rolled: "", edges: "", inferred: "", micro: "", direction: "down", depth: "", fold: "",
  sync: "", colour: "", half: "", flow: "", map: "", limit: "", levels: "", measure: "", find: "", cone: "",
};

const mostHits = 2000;

class Stage {
  /** @type {{pane: Pane, scene: Scene, side: Side}[]} */
  shown = [];
  #madeFor = "";
  #openFor = "";
  #colouredFor = "";
  #selectedFor = "";
  #foldsFor = "";
  #searchedFor = "";
  /** @type {Set<string>} */
  #openAtFirst = new Set();
  #picked = ""; // what a click has selected: it need not be brought into the window
  /** @type {(box: number, at: {pane: Pane, scene: Scene, side: Side}, event: MouseEvent) => void} */
  onMenu = () => {};
  /** @type {(text: string) => void} */
  onSay = () => {};
  panes = element("div", { class: "graph-panes" });
  /** Nodes that the search and the filter let through, in order of execution. @type {{items: {side: Side, id: number}[], total: number}} */
  found = { items: [], total: 0 };
  /** @type {Set<() => void>} */
  onFound = new Set();

  #rendering = 0;

  /** Draws what the state says. The panes are busy meanwhile. */
  async render() {
    this.#rendering += 1;
    this.panes.setAttribute("aria-busy", "true");
    try {
      await this.#render();
    } finally {
      this.#rendering -= 1;
      if (!this.#rendering) this.panes.removeAttribute("aria-busy");
    }
  }

  async #render() {
    const wanted = JSON.stringify(contents.map((name) => state[name]).concat(currentRun(), String([...handPairs()])));
    const isNew = wanted !== this.#madeFor;
    this.#madeFor = wanted;
    if (isNew) this.#make();
    if (!this.shown.length) return;
    if (isNew) await this.#openFirst();
    await this.#follow();
    if (wanted !== this.#madeFor) return; // another run was chosen meanwhile
    if (!isNew) this.#refold(); else this.#foldsFor = this.#folds();
    this.#colour();
    await this.#search();
    await this.#light();
    this.#mark(isNew);
  }

  #make() {
    const target = graphOf("target"), reference = graphOf("reference"), isMerged = state.panes === "one";
    const sides = /** @type {[Side, Graph | null, Graph | null][]} */ (isMerged
      ? [["target", target, reference]] : [["target", target, null], ["reference", reference, null]]);
    const present = sides.filter(([, graph]) => graph !== null);
    if (this.shown.length !== present.length) this.shown = [];
    const isFirst = !this.shown.length, isSameRun = this.#openFor === currentRun();
    present.forEach(([side, graph, other], place) => {
      const scene = new Scene(/** @type {Graph} */ (graph), other);
      const name = !hasReference ? "" : other ? say("target with what only the reference has") : say(side);
      if (isFirst) this.shown.push({ pane: this.#pane(scene, name, place), scene, side });
      else { this.shown[place].scene = scene; this.shown[place].side = side; this.shown[place].pane.show(scene); }
    });
    if (isFirst) replace(this.panes, ...this.shown.flatMap(({ pane }, place) => (place ? [divider(this.panes), pane.box] : [pane.box])));
    if (!isSameRun) this.#selectedFor = "";
    this.#colouredFor = this.#searchedFor = "";
  }

  /** @param {Scene} scene @param {string} name @param {number} place */
  #pane(scene, name, place) {
    const at = () => this.shown[place];
    return new Pane(scene, name, {
      pick: (box) => this.pick(at(), box),
      toggle: (box) => this.toggle(at(), box),
      menu: (box, event) => { this.pick(at(), box); this.onMenu(box, at(), event); },
      moved: (from, { x, y, zoom, at: centre }) => {
        if (state.sync !== "no") this.shown.forEach(({ pane }) => { if (pane !== from) pane.moveBy(x, y, zoom, centre); });
      },
      describe: (box) => describe(at().scene, box),
      describeLine: (line) => describeLine(at().scene, line),
      isOpen: (box) => this.isOpen(at(), box),
    });
  }

  // What is open

  /** Returns what the state calls a box: that of the target for both of a pair. @param {{scene: Scene, side: Side}} at @param {number} box */
  keyOf({ scene, side }, box) {
    const { node, roll, side: own } = scene.item(box);
    const id = roll ? roll.members[0] : node.id;
    const isApart = state.sync === "no" && side === "reference";
    const pair = own === "reference" && !isApart ? partner("reference", id) : -1;
    return `${roll ? "r" : ""}${own === "target" ? id : pair >= 0 ? pair : `g${id}`}`;
  }

  /** @param {{scene: Scene, side: Side}} at @param {number} box */
  isOpen(at, box) {
    if (box === 0) return true;
    if (!at.scene.hasChildren(box)) return false;
    const key = this.keyOf(at, box);
    const usual = state.depth === "" ? this.#openAtFirst.has(key) : at.scene.pathOf(box).length <= Number(state.depth);
    return usual !== this.#foldSet().has(key);
  }

  #foldText = "";
  /** @type {Set<string>} */
  #foldWords = new Set();

  #foldSet() {
    if (this.#foldText !== state.fold) {
      this.#foldText = state.fold;
      this.#foldWords = new Set(words("fold"));
    }
    return this.#foldWords;
  }

  #folds() { return `${state.fold};${state.depth};${state.sync}`; }

  async #openFirst() {
    this.#openFor = currentRun();
    this.#openAtFirst = new Set();
    const first = selectedNode(firstNode());
    if (first) {
      await first.graph.reach(first.node);
      const pair = partner(first.side, first.node), other = graphOf(otherSide(first.side));
      if (pair >= 0 && other) await other.reach(pair);
    }
    for (const at of this.shown) {
      const box = first ? this.#boxOn(at, first.side, first.node) : -1;
      if (box > 0) at.scene.pathOf(box).slice(0, -1).forEach((outer) => this.#openAtFirst.add(this.keyOf(at, outer)));
      await this.#openOnly(at);
      await this.#loadOpen(at, 0);
      at.pane.placed(() => {
        if (box > 0) { at.pane.fit(.9); at.pane.reveal(this.#visible(at, box), true); } else at.pane.fit();
      });
      at.pane.draw();
    }
  }

  // An outermost box with one child, or few, says little: its children do.
  /** @param {{scene: Scene, side: Side}} at */
  async #openOnly(at) {
    let box = 0;
    for (let depth = 0; depth < 8; depth += 1) {
      await this.#load(at, box);
      const boxes = at.scene.shown(box), size = (/** @type {number} */ child) => at.scene.item(child).node.size;
      const inner = boxes.find((child) => size(child) > .7 * boxes.reduce((sum, each) => sum + size(each), 0));
      if (inner === undefined || !at.scene.hasChildren(inner) || at.scene.item(inner).roll) return;
      box = inner;
      this.#openAtFirst.add(this.keyOf(at, box));
    }
  }

  /** Sees to it that the boxes in a box are known. @param {{scene: Scene}} at @param {number} box */
  async #load({ scene }, box) {
    const { node, side, roll } = scene.item(box);
    const graph = side === scene.graph.side ? scene.graph : scene.other;
    const waiting = roll || !graph ? null : graph.load(node.id);
    if (waiting) { await waiting; scene.forget(); }
  }

  /** @param {{scene: Scene, side: Side, pane: Pane}} at @param {number} box */
  async #loadOpen(at, box) {
    if (at.scene.graph.isWhole || !this.isOpen(at, box)) return;
    await this.#load(at, box);
    for (const child of at.scene.shown(box)) await this.#loadOpen(at, child);
    if (box === 0) at.pane.nest.forgetAll();
  }

  #refold() {
    const wanted = this.#folds();
    if (wanted === this.#foldsFor) return;
    const [before] = this.#foldsFor.split(";"), isSmall = this.#foldsFor.endsWith(`;${state.depth};${state.sync}`);
    this.#foldsFor = wanted;
    const old = new Set(before.split(",").filter(Boolean)), now = this.#foldSet();
    const changed = isSmall ? [...old, ...now].filter((key) => old.has(key) !== now.has(key)) : null;
    for (const at of this.shown) {
      const boxes = changed ? changed.map((key) => this.#boxOfKey(at, key)).filter((box) => box >= 0) : null;
      const kept = boxes?.length ? boxes[boxes.length - 1] : Math.max(this.#visible(at, at.pane.selected), 0);
      if (!boxes) at.pane.nest.forgetAll();
      void this.#loadOpen(at, 0).then(() => at.pane.relayout(boxes ?? [0], kept));
    }
  }

  /** @param {{scene: Scene, side: Side}} at @param {string} key */
  #boxOfKey(at, key) {
    const isRoll = key.startsWith("r"), text = isRoll ? key.slice(1) : key;
    const isReference = text.startsWith("g"), id = Number(isReference ? text.slice(1) : text);
    const box = isReference ? this.#boxOn(at, "reference", id) : this.#boxOn(at, "target", id);
    if (!isRoll || box < 0) return box;
    const path = at.scene.pathOf(box);
    return path[path.length - 2] ?? -1;
  }

  /** Returns the box of a node, or of its partner, in a pane. @param {{scene: Scene}} at @param {Side} side @param {number} node */
  #boxOn({ scene }, side, node) {
    const own = scene.boxOf(side, node);
    if (own >= 0) return own;
    const pair = partner(side, node);
    return pair >= 0 ? scene.boxOf(otherSide(side), pair) : -1;
  }

  /** Returns the innermost box that can be seen of those around a box. @param {{scene: Scene, side: Side}} at @param {number} box */
  #visible(at, box) {
    if (box < 0) return -1;
    const path = at.scene.pathOf(box);
    return path.find((outer, place) => !this.isOpen(at, outer) || !at.scene.shown(outer).includes(path[place + 1])) ?? box;
  }

  /** Opens or closes a box. @param {{scene: Scene, side: Side}} at @param {number} box */
  toggle(at, box) {
    if (box > 0 && at.scene.hasChildren(box)) change({ fold: toggled("fold", this.keyOf(at, box)) });
  }

  /** Opens or closes all in a box. @param {{scene: Scene, side: Side}} at @param {number} box @param {boolean} isOpen */
  async toggleAll(at, box, isOpen) {
    const fold = new Set(this.#foldSet());
    const flip = async (/** @type {number} */ inner) => {
      if (!at.scene.hasChildren(inner)) return;
      await this.#load(at, inner);
      if (inner > 0 && this.isOpen(at, inner) !== isOpen) {
        const key = this.keyOf(at, inner);
        if (fold.has(key)) fold.delete(key); else fold.add(key);
      }
      if (fold.size < 4000) for (const child of at.scene.shown(inner)) await flip(child);
    };
    await flip(box);
    change({ fold: [...fold].join(",") });
  }

  // What is selected

  /** @param {{scene: Scene}} at @param {number} box */
  pick({ scene }, box) {
    const { node, side, roll } = scene.item(box);
    if (box === 0) return;
    this.#picked = nodeId(side, roll ? roll.members[0] : node.id);
    change({ at: this.#picked, part: "" });
    this.panes.focus({ preventScroll: true });
  }

  // Opens what is around a node that something else than a click has selected.
  async #follow() {
    if (state.at === this.#selectedFor) return;
    const selected = selectedNode();
    this.#selectedFor = state.at;
    if (!selected) return;
    await selected.graph.reach(selected.node);
    const isPicked = this.#picked === state.at;
    this.#picked = "";
    const pair = partner(selected.side, selected.node), other = graphOf(otherSide(selected.side));
    if (pair >= 0 && other) await other.reach(pair);
    if (isPicked) return;
    const closed = new Set(this.shown.flatMap((at) => {
      const box = this.#boxOn(at, selected.side, selected.node);
      return box < 0 ? [] : at.scene.pathOf(box).slice(1, -1).filter((outer) => !this.isOpen(at, outer)).map((outer) => this.keyOf(at, outer));
    }));
    if (closed.size) { change({ fold: [...this.#foldSet()].filter((key) => !closed.has(key)).concat([...closed].filter((key) => !this.#foldSet().has(key))).join(",") }); this.#refold(); }
    for (const at of this.shown) {
      const box = this.#boxOn(at, selected.side, selected.node);
      if (box >= 0) at.pane.reveal(box);
    }
  }

  /** @param {boolean} isNew */
  #mark(isNew) {
    const selected = selectedNode();
    for (const at of this.shown) {
      at.pane.selected = selected && (selected.side === at.side || at.scene.other) ? this.#visible(at, at.scene.boxOf(selected.side, selected.node)) : -1;
      const pair = selected && at.pane.selected < 0 ? partner(selected.side, selected.node) : -1;
      at.pane.partner = selected && pair >= 0 ? this.#visible(at, at.scene.boxOf(otherSide(selected.side), pair)) : -1;
      at.pane.draw();
    }
    if (selected && !isNew) this.onSay(spoken({ node: selected.graph.node(selected.node), side: selected.side, roll: null, isGhost: false }));
  }

  /** Selects what is beside, around or in the selected box. @param {"next" | "previous" | "out" | "in"} way */
  walk(way) {
    const selected = selectedNode(), [at] = selected ? this.shown.filter(({ side, scene }) => side === selected.side || scene.other) : this.shown;
    if (!at) return;
    const box = selected ? this.#visible(at, at.scene.boxOf(selected.side, selected.node)) : -1;
    if (box <= 0) { this.#pickAt(at, at.scene.shown(0)[0]); return; }
    const path = at.scene.pathOf(box), around = path[path.length - 2], row = at.scene.shown(around), place = row.indexOf(box);
    if (way === "in") {
      if (!at.scene.hasChildren(box)) return;
      if (this.isOpen(at, box)) this.#pickAt(at, at.scene.shown(box)[0]); else this.toggle(at, box);
    } else if (way === "out") {
      if (this.isOpen(at, box)) this.toggle(at, box); else if (around > 0) this.#pickAt(at, around);
    } else this.#pickAt(at, row[place + (way === "next" ? 1 : -1)]);
  }

  /** @param {{scene: Scene, pane: Pane}} at @param {number | undefined} box */
  #pickAt(at, box) {
    if (box === undefined) return;
    this.pick(at, box);
    at.pane.reveal(box);
  }

  /** Opens or closes the selected box. */
  toggleSelected() {
    const at = this.shown.find(({ pane }) => pane.selected > 0);
    if (at) this.toggle(at, at.pane.selected);
  }

  /** Selects the next finding in order of execution. @param {number} by 1 or −1 */
  step(by) {
    const selected = selectedNode();
    const ids = findings(), place = selected ? ids.indexOf(nodeId(selected.side, selected.node)) : -1;
    if (!ids.length) return;
    change({ at: ids[place < 0 ? (by > 0 ? 0 : ids.length - 1) : (place + by + ids.length) % ids.length], part: "" });
  }

  // What is coloured, searched for and lit

  #colour() {
    const wanted = `${state.colour};${state.half};${state.measure};${currentRun()}`;
    if (wanted === this.#colouredFor) return;
    this.#colouredFor = wanted;
    scaleColours(this.shown.flatMap(({ scene: { graph } }) => (
      graph.isWhole ? Array.from({ length: graph.count }, (_, node) => graph.node(node)) : graph.children(0).map((node) => graph.node(node)))));
  }

  async #search() {
    const wanted = `${state.find};${currentRun()};${this.filter()};${state.half}`;
    if (wanted === this.#searchedFor) return;
    this.#searchedFor = wanted;
    const [asked, only] = state.find.startsWith("ref:") ? [state.find.slice(4), "reference"] : [state.find, ""];
    const text = `${asked} ${this.filter()}`.trim();
    /** @type {{side: Side, id: number}[]} */
    const items = [];
    let total = 0;
    for (const side of /** @type {Side[]} */ (only ? [only] : asked.trim() ? ["target"] : ["target", "reference"])) {
      const graph = text ? graphOf(side) : null;
      if (!graph) continue;
      // Of the reference, a filter lists what the target does not have.
      const answer = await find(graph, only || side === "target" ? text : `${text} severity:5`, mostHits);
      const own = answer.ids.filter((id) => only || side === "target" || partner(side, id) < 0);
      items.push(...own.map((id) => ({ side, id })));
      total += answer.total - answer.ids.length + own.length;
    }
    if (wanted !== this.#searchedFor) return;
    const order = (/** @type {{side: Side, id: number}} */ { side, id }) => graphOf(side)?.node(id).order ?? 0;
    this.found = { items: items.sort((one, other) => order(one) - order(other)), total };
    for (const at of this.shown) {
      const hits = asked.trim() ? items.filter(({ side, id }) => graphOf(side)?.isKnown(id)) : [];
      at.pane.hits = new Set(hits.map(({ side, id }) => at.scene.boxOf(side, id)).filter((box) => box > 0));
    }
    this.onFound.forEach((listener) => listener());
  }

  /** Returns what is ticked and the threshold of the error, in the language of searches. */
  filter() {
    const ticked = words("levels"), severity = /** @type {Record<string, string>} */ ({ agrees: "1,2", inherited: "3", amplified: "4", unmatched: "5", introduced: "6" });
    const level = !ticked.length ? "" : hasReference ? `severity:${ticked.map((word) => severity[word])}` : `overflow:${ticked}`;
    const limit = state.limit === "" ? "" : `error${state.measure ? `_${state.measure}` : ""}>${10 ** Number(state.limit)}`;
    return [level, limit, (level || limit) && !state.find.trim() ? "listed:1" : ""].filter(Boolean).join(" ");
  }

  async #light() {
    const from = state.cone ? selectedNode(state.cone) : null;
    const nodes = from ? await upstream(from.graph, from.node) : [];
    for (const at of this.shown) {
      const boxes = from ? nodes.filter((node) => from.graph.isKnown(node)).map((node) => this.#visible(at, this.#boxOn(at, from.side, node))) : [];
      at.pane.lit = new Set(boxes.filter((box) => box > 0));
    }
  }
}

export const stage = new Stage();

/** Returns all nodes whose values have reached a node. @param {Graph} graph @param {number} node @returns {Promise<number[]>} */
async function upstream(graph, node) {
  if (!graph.isWhole) return (await ask("upstream", { graph: graph.place, node, limit: mostHits })).ids;
  /** @type {Map<number, number[]>} */
  const makers = new Map();
  for (const { from, to } of graph.allEdges()) {
    const held = makers.get(to);
    if (held) held.push(from); else makers.set(to, [from]);
  }
  const end = node + graph.node(node).size, seen = new Set(Array.from({ length: end - node }, (_, place) => node + place));
  const waiting = [...seen];
  while (waiting.length) {
    for (const maker of makers.get(/** @type {number} */ (waiting.pop())) ?? []) {
      if (!seen.has(maker)) { seen.add(maker); waiting.push(maker); }
    }
  }
  return [...seen];
}

/** @param {HTMLElement} panes */
function divider(panes) {
  const made = element("div", { class: "graph-divider", role: "separator", "aria-orientation": "vertical", "aria-label": say("Width of the panes"), tabindex: "0" });
  let share = 50;
  const set = (/** @type {number} */ wanted) => {
    share = Math.min(Math.max(wanted, 10), 90);
    /** @type {HTMLElement} */ (panes.firstElementChild).style.flexBasis = `${share}%`;
    /** @type {HTMLElement} */ (panes.lastElementChild).style.flexBasis = `${100 - share}%`;
  };
  made.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const { left, width } = panes.getBoundingClientRect();
    if (event.buttons) set(100 * (event.clientX - left) / width);
  });
  made.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => made.setPointerCapture(event.pointerId));
  made.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const by = { ArrowLeft: -4, ArrowRight: 4 }[event.key];
    if (by) { event.stopPropagation(); set(share + by); }
  });
  return made;
}

/** @param {Scene} scene @param {number} box */
function describe(scene, box) {
  const { node, roll, isGhost } = scene.item(box), seen = look(node, true);
  const counts = node.halves && node.differs + node.unmatched ? say("{} of {} differ", grouped(node.differs + node.unmatched), grouped(node.halves)) : "";
  const error = node.error === null ? "" : say("error {}", digits(node.error));
  const back = node.error_backward === null ? "" : say("backward {}", digits(node.error_backward));
  return [
    roll ? node.label : fullName(node) || title(node),
    joined(node.class, node.kind === kind.api ? "" : say("{} calls", grouped(node.size - 1)), node.dtype, node.source),
    joined(hasReference ? seen.words : "", error, back, counts),
    joined(node.norm === null ? "" : say("norm {}", digits(node.norm)), node.grad_norm === null ? "" : say("gradient norm {}", digits(node.grad_norm))),
    isGhost ? say("only in the reference") : "",
  ].filter(Boolean);
}

/** @param {Scene} scene @param {Line} line */
function describeLine(scene, { edges }) {
  const all = edges.map((place) => scene.edges[place]);
  const lines = all.slice(0, 6).map(({ from, to, from_slot: made, to_slot: used, shape, dtype, how, confidence }) => joined(
    `${title(scene.graph.node(from))} ${made} → ${title(scene.graph.node(to))} ${used}`, `${shape} ${dtype}`.trim(),
    how > 0 ? `${evidence(how)}${confidence < 1 ? ` ${Math.round(100 * confidence)} %` : ""}` : ""));
  return [say("{} values", all.length), ...lines, all.length > lines.length ? say("and {} more", all.length - lines.length) : ""].filter(Boolean);
}
