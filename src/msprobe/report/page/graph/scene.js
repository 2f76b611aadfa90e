// SPDX-License-Identifier: Apache-2.0
// One picture: a graph, or two in one. Decides which boxes there are at a level, and which lines between them.
//
// Boxes have numbers of their own: first the nodes of the graph, then rolls of identical neighbours, then the nodes
// of the other graph that have no partner in this one.

import { flag, handPairs, kind } from "../data/graph.js";
import { state } from "../shared/store.js";
import { say } from "../shared/language.js";

/** @typedef {import("../data/graph.js").Graph} Graph */
/** @typedef {import("../data/graph.js").GraphNode} GraphNode */
/** @typedef {import("../data/graph.js").Roll} Roll */
/** @typedef {import("../data/graph.js").Edge} Edge */
/** @typedef {import("../data/graph.js").Side} Side */
/** @typedef {import("./nest.js").Line} Line */

/** @typedef {{node: GraphNode, side: Side, roll: Roll | null, isGhost: boolean}} Item what a box shows */

const widths = { letter: 7.3, small: 6.1, least: 84, most: 236 };

export class Scene {
  /** @type {Map<number, number[]>} */
  #shown = new Map();
  /** @type {Map<number, Line[]>} */
  #lines = new Map();
  /** @type {Map<number, Edge[]>} edges with one end in a box */
  #crossing = new Map();
  /** @type {Map<number, number>} */
  #rollOf = new Map();
  /** @type {Map<number, {roll: Roll, node: GraphNode}>} */
  #rolls = new Map();
  /** @type {Edge[]} edges of lines, by place */
  edges = [];
  /** @type {Map<Edge, number>} */
  #edgePlaces = new Map();
  #nextRoll;

  /**
   * @param {Graph} graph
   * @param {Graph | null} other whose nodes without a partner are shown as well
   */
  constructor(graph, other) {
    this.graph = graph;
    this.other = other;
    this.#nextRoll = graph.count;
    this.ghosts = graph.count * 2 + 2; // there are fewer rolls than nodes
  }

  /** Forgets which boxes there are. */
  forget() {
    this.#shown.clear();
    this.#lines.clear();
    this.#crossing.clear();
  }

  /** @param {number} box @returns {Item} */
  item(box) {
    const roll = this.#rolls.get(box);
    const { graph, other } = this;
    if (roll) return { node: roll.node, side: graph.side, roll: roll.roll, isGhost: false };
    if (box >= this.ghosts && other) return { node: other.node(box - this.ghosts), side: other.side, roll: null, isGhost: true };
    return { node: graph.node(box), side: graph.side, roll: null, isGhost: false };
  }

  /** Returns the box of a node; -1 where this picture has none. @param {Side} side @param {number} node */
  boxOf(side, node) {
    if (side === this.graph.side) return node < this.graph.count ? node : -1;
    if (!this.other) return -1;
    const pair = this.#partner(node);
    return pair >= 0 ? pair : this.ghosts + node;
  }

  /** Returns the node of this graph for one of the other graph. @param {number} node */
  #partner(node) {
    for (const [target, reference] of handPairs()) if (reference === node) return target;
    return this.other?.node(node).match ?? -1;
  }

  /** Returns a box and all around it, the outermost first. @param {number} box @returns {number[]} */
  pathOf(box) {
    if (box >= this.ghosts && this.other) {
      const inner = [];
      let at = box - this.ghosts;
      while (at > 0 && this.#partner(at) < 0) { inner.unshift(this.ghosts + at); at = this.other.node(at).parent; }
      return [...this.pathOf(Math.max(this.#partner(at), 0)), ...inner];
    }
    const roll = this.#rolls.get(box);
    if (roll) return [...this.pathOf(roll.roll.parent), box];
    return this.graph.pathOf(box).flatMap((node) => {
      const around = this.#rollAround(node);
      return around >= 0 ? [around, node] : [node];
    });
  }

  /** @param {number} node */
  #rollAround(node) {
    const { parent } = this.graph.node(node);
    if (parent >= 0) this.shown(parent);
    return this.#rollOf.get(node) ?? -1;
  }

  /** @param {number} box */
  hasChildren(box) {
    const { node, roll } = this.item(box);
    return roll !== null || node.size > 1;
  }

  /** Returns the boxes in a box, in order of execution. @param {number} box @returns {number[]} */
  shown(box) {
    let found = this.#shown.get(box);
    if (!found) {
      found = this.#makeShown(box);
      this.#shown.set(box, found);
    }
    return found;
  }

  /** @param {number} box @returns {number[]} */
  #makeShown(box) {
    const { graph, other, ghosts } = this;
    const roll = this.#rolls.get(box);
    if (roll) return roll.roll.members;
    if (box >= ghosts && other) return other.children(box - ghosts).filter((child) => this.#isShown(other.node(child))).map((child) => ghosts + child);
    const children = graph.children(box).filter((child) => this.#isShown(graph.node(child)));
    return this.#withGhosts(box, state.rolled === "no" ? children : this.#rolled(box, children));
  }

  /** @param {GraphNode} node */
  #isShown(node) {
    return (state.folded === "show" || !(node.flags & flag.folded)) && (state.micro === "" || String(node.micro) === state.micro || node.kind !== kind.module);
  }

  /** Puts boxes of rolls in place of their members. @param {number} box @param {number[]} children */
  #rolled(box, children) {
    for (const roll of this.graph.rolls(box)) {
      const [first] = roll.members;
      let place = this.#rollOf.get(first) ?? -1;
      if (place < 0) {
        place = this.#nextRoll;
        this.#nextRoll += 1;
        roll.members.forEach((member) => this.#rollOf.set(member, place));
        this.#rolls.set(place, { roll, node: rolledNode(this.graph, roll, place) });
      }
      const members = new Set(roll.members);
      children = children.flatMap((child) => (child === first ? [place] : members.has(child) ? [] : [child]));
    }
    return children;
  }

  /** Adds what only the other graph has, behind what it ran after. @param {number} box @param {number[]} boxes */
  #withGhosts(box, boxes) {
    const { graph, other } = this;
    if (!other || box >= graph.count) return boxes;
    const pair = handPairs().get(box) ?? graph.node(box).match;
    if (pair < 0) return boxes;
    const made = [...boxes];
    let after = -1;
    for (const child of other.children(pair)) {
      const partner = this.#partner(child);
      if (partner >= 0) {
        const place = made.indexOf(this.#rollOf.get(partner) ?? partner);
        after = Math.max(after, place >= 0 ? place : made.indexOf(partner));
      } else if (this.#isShown(other.node(child))) {
        after += 1;
        made.splice(after, 0, this.ghosts + child);
      }
    }
    return made;
  }

  /** Returns the lines between the boxes in a box. @param {number} box @returns {Line[]} */
  lines(box) {
    let found = this.#lines.get(box);
    if (!found) {
      found = state.edges === "no" ? [] : this.#makeLines(box);
      this.#lines.set(box, found);
    }
    return found;
  }

  /** @param {number} box */
  #makeLines(box) {
    if (box >= this.ghosts) return [];
    const boxes = this.shown(box);
    const hidden = this.#hidden(box);
    const places = this.#places([...boxes, ...hidden]);
    /** @type {Map<string, Line>} */
    const lines = new Map();
    for (const edge of [...this.#inner(box), ...this.#outer(box)]) {
      const from = places(edge.from), to = places(edge.to);
      if (from === to) continue;
      this.#addLine(lines, from, to, [this.#edgePlace(edge)]);
    }
    return this.#through(lines, boxes.length, hidden.length);
  }

  /** @param {Map<string, Line>} lines @param {number} from @param {number} to @param {number[]} edges */
  #addLine(lines, from, to, edges) {
    const key = `${from}>${to}`, line = lines.get(key);
    if (!line) lines.set(key, { from, to, edges: [...edges] });
    else if (line.edges.length < 200) line.edges.push(...edges);
  }

  // Views, casts and metadata are not shown; lines lead through them.
  /** @param {Map<string, Line>} lines @param {number} shown @param {number} hidden @returns {Line[]} */
  #through(lines, shown, hidden) {
    for (let place = shown; place < shown + hidden; place += 1) {
      const all = [...lines.entries()];
      const into = all.filter(([, line]) => line.to === place), out = all.filter(([, line]) => line.from === place);
      for (const [, one] of into) {
        for (const [, other] of out) if (one.from !== other.to) this.#addLine(lines, one.from, other.to, other.edges);
      }
      [...into, ...out].forEach(([key]) => lines.delete(key));
    }
    return [...lines.values()].sort((one, other) => one.from - other.from || one.to - other.to);
  }

  /** Returns the children of a box that are not shown and do not belong to a roll. @param {number} box */
  #hidden(box) {
    if (box >= this.graph.count) return [];
    return this.graph.children(box).filter((child) => !this.#isShown(this.graph.node(child)));
  }

  /**
   * Returns a function from a node to the place of the box it is in; -1 where it is in none.
   * @param {number[]} boxes
   */
  #places(boxes) {
    const ranges = boxes.flatMap((box, place) => {
      if (box >= this.ghosts) return [];
      const roll = this.#rolls.get(box);
      return (roll?.roll.members ?? [box]).map((node) => ({ from: node, end: node + this.graph.node(node).size, place }));
    }).sort((one, other) => one.from - other.from);
    return (/** @type {number} */ node) => {
      let low = 0, high = ranges.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (ranges[middle].from <= node) low = middle + 1; else high = middle;
      }
      const found = ranges[low - 1];
      return found && node < found.end ? found.place : -1;
    };
  }

  /** Returns the edges between two children of a box. @param {number} box @returns {Edge[]} */
  #inner(box) {
    const roll = this.#rolls.get(box);
    const edges = roll ? this.graph.edges(roll.roll.parent) : this.graph.edges(box);
    return state.inferred === "no" ? edges.filter(({ how }) => how === 0 || how === 4) : edges;
  }

  /** Returns the edges that lead into a box or out of it. @param {number} box @returns {Edge[]} */
  #outer(box) {
    const roll = this.#rolls.get(box);
    if (roll) return this.#outer(roll.roll.parent);
    let found = this.#crossing.get(box);
    if (!found) {
      const { parent } = this.graph.node(box);
      const around = parent < 0 ? [] : [...this.#inner(parent), ...this.#outer(parent)];
      found = around.filter(({ from, to }) => this.graph.isIn(from, box) !== this.graph.isIn(to, box));
      this.#crossing.set(box, found);
    }
    return found;
  }

  /** @param {Edge} edge */
  #edgePlace(edge) {
    let place = this.#edgePlaces.get(edge);
    if (place === undefined) {
      place = this.edges.push(edge) - 1;
      this.#edgePlaces.set(edge, place);
    }
    return place;
  }

  /** Returns the size of a closed box. @param {number} box */
  size(box) {
    const { node, roll } = this.item(box);
    const isOpenable = this.hasChildren(box);
    const label = title(node).length * widths.letter + (isOpenable ? 46 : 26) + (roll ? 70 : 0);
    const under = isOpenable && node.class ? node.class.length * widths.small + 70 : 0;
    const w = Math.min(Math.max(label, under, isOpenable ? 110 : widths.least), widths.most);
    return { w: Math.round(w), h: isOpenable ? 42 : 26 };
  }
}

/** Returns the word on a box. @param {GraphNode} node */
export function title(node) { return node.label.replace(/^__(\w+)__$/, "$1") || node.class || node.name || say("all"); }

/** @param {Graph} graph @param {Roll} roll @param {number} place @returns {GraphNode} */
function rolledNode(graph, roll, place) {
  const members = roll.members.map((member) => graph.node(member));
  const sum = (/** @type {string} */ name) => members.reduce((total, member) => total + member[name], 0);
  const worst = Math.max(...members.map((member) => member.worst));
  return {
    ...members[0], id: place, kind: kind.roll, label: roll.label, severity: 0, severity_backward: 0, worst, match: -1,
    size: sum("size"), introduced: sum("introduced"), differs: sum("differs"), unmatched: sum("unmatched"), halves: sum("halves"),
    overflow: Math.max(...members.map((member) => member.overflow)), error: null, error_backward: null,
    name: `${members[0].name} … ${members[members.length - 1].name}`, path: "", source: "",
  };
}
