// SPDX-License-Identifier: Apache-2.0
// The graphs of a page: one for each side of each rank and step. Nodes are numbered parents first, so the numbers of
// all that is in a node follow its own. What the page does not hold is fetched from the server it came from.

import { tell } from "../shared/dom.js";
import { number, sections } from "../shared/sections.js";
import { change, state } from "../shared/store.js";
import { operations, otherNames } from "./comparison.js";

/** @typedef {"target" | "reference"} Side */
/** @typedef {Record<string, any>} GraphNode a row of the table of nodes, with its `id` */
/** @typedef {Record<string, any>} Edge a row of the table of edges, with its place as `id` */
/** @typedef {{parent: number, members: number[], class: string, label: string, error?: any[], worst?: number[]}} Roll `error` and `worst` only with a reference */

export const whole = sections.graph ?? { graphs: [], texts: [], cells: [], culprits: [], links: [], layers: { labels: [], rank: [] } };
export const hasReference = Boolean(whole.reference);

/** Bits of `flags`. */
export const flag = { folded: 4, recomputed: 8, communication: 16, inPlace: 32, raised: 64, parameters: 128, nonfinite: 256 };
/** Values of `kind`; a roll is made of identical neighbours by the page's data. */
export const kind = { root: 0, module: 1, api: 2, group: 3, collection: 4, roll: 5 };
/** Values of `severity`. */
export const severities = ["none", "equal", "close", "inherited", "amplified", "unmatched", "introduced"];
export const overflows = ["none", "medium", "high", "critical"];
const unmatched = 5;

const textColumns = new Set([
  "name", "label", "class", "path", "source", "forward", "backward", "dtype", "device", "status", "status_backward",
  "origin", "origin_backward", "from_slot", "to_slot", "shape",
]);
/** Statistics whose relative difference may be looked at instead of the error. */
export const measures = ["max", "min", "mean", "norm"];
const measured = measures.flatMap((name) => [`error_${name}`, `error_${name}_backward`]);
const numbers = new Set(["norm", "grad_norm", "error", "error_backward", "confidence", ...measured]);
/** @type {GraphNode} */
const unknown = {
  parent: -1, size: 1, kind: 2, flags: 0, name: "", label: "", class: "", path: "", source: "", order: -1, order_backward: -1,
  micro: 0, forward: "", backward: "", overflow: 0, norm: null, grad_norm: null, dtype: "", device: "", match: -1,
  confidence: null, status: "", status_backward: "", origin: "", origin_backward: "", error: null, error_backward: null,
  severity: 0, severity_backward: 0, worst: 0, introduced: 0, differs: 0, unmatched: 0, halves: 0,
  ...Object.fromEntries(measured.map((name) => [name, null])),
};

/** @param {Record<string, any[]>} columns @param {number} place */
function readRow(columns, place) {
  /** @type {Record<string, any>} */
  const row = {};
  for (const name in columns) {
    const cells = columns[name], value = cells[cells.length === 1 ? 0 : place];
    if (textColumns.has(name)) row[name] = typeof value === "number" ? whole.texts[value] : value ?? "";
    else row[name] = numbers.has(name) ? number(value) : value;
  }
  return row;
}

/** @param {Record<string, any[]>} columns */
function rowCount(columns) { return Math.max(0, ...Object.values(columns ?? {}).map((cells) => cells.length)); }

export class Graph {
  /** @type {Map<number, GraphNode>} */
  #nodes = new Map();
  /** @type {Map<number, GraphNode>} nodes that were found, of which the page does not know what they are in */
  #seen = new Map();
  /** @type {Map<number, number[]>} */
  #children = new Map();
  /** @type {Map<number, Edge[]>} by the innermost node that both ends are in */
  #edges = new Map();
  /** @type {Map<number, Roll[]>} */
  #rolls = new Map();
  /** @type {Map<number, any>} */
  #details = new Map();
  /** @type {Map<number, Promise<void>>} */
  #fetched = new Map();
  #columns;

  /** @param {any} data @param {number} place */
  constructor(data, place) {
    this.place = place;
    /** @type {Side} */
    this.side = data.side;
    this.step = data.step;
    this.rank = String(data.rank);
    this.count = data.count;
    /** On what is not known. @type {string[]} */
    this.notes = data.notes ?? [];
    this.level = data.level ?? "";
    this.microSteps = data.micro_steps ?? 1;
    this.#columns = data.nodes ?? null;
    /** Whether the page holds all of it. */
    this.isWhole = data.nodes !== undefined && data.nodes !== null;
    Object.entries(data.details ?? {}).forEach(([node, detail]) => this.#details.set(Number(node), detail));
    if (this.isWhole) {
      this.#addEdges(data.edges);
      this.#addRolls(data.rolls);
    } else this.#addNode(0, readRow(data.root ?? {}, 0));
    /** What the server has found in it. @type {number[]} */
    this.findings = data.findings?.ids ?? [];
    if (data.findings) this.see(data.findings);
  }

  get run() { return `${this.step}/${this.rank}`; }

  /** Keeps nodes that a search of the server has found. @param {{ids: number[], nodes: Record<string, any[]>}} found */
  see({ ids, nodes }) { ids.forEach((id, place) => this.#seen.set(id, { ...unknown, ...readRow(nodes, place), id })); }

  /** @param {number} id @param {Record<string, any>} row */
  #addNode(id, row) { this.#nodes.set(id, { ...unknown, ...row, id }); }

  /** @param {Record<string, any[]>} columns */
  #addEdges(columns) {
    const count = rowCount(columns);
    for (let place = 0; place < count; place += 1) {
      const edge = /** @type {Edge} */ ({ ...readRow(columns, place) });
      const held = this.#edges.get(edge.lca);
      if (held) held.push(edge); else this.#edges.set(edge.lca, [edge]);
    }
  }

  /** @param {Roll[]} rolls */
  #addRolls(rolls) {
    for (const roll of rolls ?? []) {
      const held = this.#rolls.get(roll.parent);
      if (held) held.push(roll); else this.#rolls.set(roll.parent, [roll]);
    }
  }

  /** Returns a node that is known. @param {number} id @returns {GraphNode} */
  node(id) {
    let found = this.#nodes.get(id) ?? this.#seen.get(id);
    if (!found) {
      this.#addNode(id, this.#columns ? readRow(this.#columns, id) : {});
      found = /** @type {GraphNode} */ (this.#nodes.get(id));
    }
    return found;
  }

  /** Returns whether the page knows a node and all it is in. @param {number} id */
  isKnown(id) { return this.isWhole || this.#nodes.has(id); }

  /** Returns whether the page can say what a node is. @param {number} id */
  isSeen(id) { return this.isKnown(id) || this.#seen.has(id); }

  /** Yields the nodes among which findings are: all, or those that the server has picked. @returns {Generator<GraphNode>} */
  * suspects() {
    if (!this.isWhole) { for (const id of this.findings) yield this.node(id); return; }
    for (let node = 1; node < this.count; node += 1) yield this.node(node);
  }

  /** @param {number} id */
  hasChildren(id) { return this.node(id).size > 1; }

  /** Returns the children of a node, as far as they are known, in order of execution. @param {number} id */
  children(id) {
    let found = this.#children.get(id);
    if (!found) {
      found = [];
      if (!this.isWhole) return found;
      const end = id + this.node(id).size;
      for (let child = id + 1; child < end; child += this.node(child).size) found.push(child);
      this.#children.set(id, found);
    }
    return found;
  }

  /** Returns edges that belong to the level of a node's children. @param {number} id @returns {Edge[]} */
  edges(id) { return this.#edges.get(id) ?? []; }

  /** Returns all known edges. */
  allEdges() { return [...this.#edges.values()].flat(); }

  /** @param {number} id */
  rolls(id) { return this.#rolls.get(id) ?? []; }

  /** Returns whether a node is in another one, or is it. @param {number} id @param {number} outer */
  isIn(id, outer) { return id >= outer && id < outer + this.node(outer).size; }

  /** Returns a node and all it is in, the outermost first. @param {number} id */
  pathOf(id) {
    const path = [];
    for (let at = id; at >= 0; at = this.node(at).parent) path.unshift(at);
    return path;
  }

  /** Sees to it that the children of a node are known. @param {number} id @returns {Promise<void> | null} null where they are */
  load(id) {
    if (this.isWhole || this.#children.has(id) || !this.hasChildren(id)) return null;
    let waiting = this.#fetched.get(id);
    if (!waiting) {
      waiting = ask("children", { graph: this.place, node: id }).then((answer) => {
        answer.ids.forEach((/** @type {number} */ child, /** @type {number} */ place) => this.#addNode(child, readRow(answer.nodes, place)));
        this.#addEdges(answer.edges);
        this.#addRolls(answer.rolls);
        this.#children.set(id, answer.ids);
      }).finally(() => this.#fetched.delete(id));
      this.#fetched.set(id, waiting);
    }
    return waiting;
  }

  /** Sees to it that a node, and all it is in, is known. @param {number} id */
  async reach(id) {
    if (this.isWhole) return;
    const { ids } = this.isKnown(id) ? { ids: this.pathOf(id).slice(0, -1) } : await ask("path", { graph: this.place, node: id });
    for (const outer of ids) if (outer !== id) await this.load(outer);
  }

  /** Returns the values and the call stack of a node. @param {number} id @returns {Promise<any> | any} */
  detail(id) {
    if (this.#details.has(id)) return this.#details.get(id);
    const pair = this.side === "reference" ? this.node(id).match : -1;
    if (pair >= 0) return graphOf("target", this.run)?.detail(pair) ?? null;
    if (!isServed || this.#details.size) return null;
    return ask("detail", { graph: this.place, node: id }).then((detail) => { this.#details.set(id, detail); return detail; });
  }
}

/** Whether the page came from a server that has more. */
export const isServed = window.location.protocol.startsWith("http");

/** @param {string} what @param {Record<string, string | number>} options */
export async function ask(what, options) {
  const version = whole.version_served ?? 0;
  const query = new URLSearchParams(Object.entries({ ...options, version }).map(([name, value]) => [name, String(value)]));
  const answer = await fetch(`${what}?${query}`).catch(() => null);
  if (answer?.ok) return answer.json();
  const problem = answer ? await answer.text() : "the server does not answer: is it still running?";
  tell(problem);
  throw new Error(`${what}: ${problem}`);
}

/** @type {Graph[]} */
export const graphs = whole.graphs.map((/** @type {any} */ data, /** @type {number} */ place) => new Graph(data, place));

/** Steps and ranks, each with the places of its graphs. */
export const cells = whole.cells;

/** Returns the step and rank that is shown, as the state writes it. */
export function currentRun() {
  const names = cells.map((/** @type {any} */ cell) => `${cell.step}/${cell.rank}`);
  if (names.includes(state.run)) return state.run;
  const picked = nodeOf.get(state.at);
  if (picked) return picked.run;
  const { headline } = whole;
  return headline && names.includes(`${headline.step}/${headline.rank}`) ? `${headline.step}/${headline.rank}` : names[0] ?? "";
}

/** @param {Side} side @returns {Graph | null} */
export function graphOf(side, run = currentRun()) {
  const cell = cells.find((/** @type {any} */ each) => `${each.step}/${each.rank}` === run);
  return graphs[cell?.[side] ?? -1] ?? null;
}

/** @param {Side} side @param {number} node */
export function nodeId(side, node) { return `graph/${side}/${node}`; }

// Where the page has a comparison too: the nodes of its operations, and back. A node has several operations; the most
// interesting one is its own.

/** @typedef {import("./comparison.js").Operation} Operation */
/** @type {Map<string, {run: string, id: string}>} */
const nodeOf = new Map();
/** @type {Map<string, Operation>} */
const operationOf = new Map();

operations.forEach((operation, place) => {
  const { side, node } = sections.graph_nodes ?? { side: [], node: [] };
  if (!(node[place] >= 0)) return;
  const run = `${operation.step}/${operation.rank}`, id = nodeId(side[place] ? "reference" : "target", node[place]), key = `${run} ${id}`;
  nodeOf.set(operation.id, { run, id });
  if (operation.interest < (operationOf.get(key)?.interest ?? Infinity)) operationOf.set(key, operation);
});

otherNames.push((id) => {
  const found = selectedNode(id);
  if (!found) return undefined;
  const run = currentRun(), pair = found.side === "reference" ? partner("reference", found.node) : -1;
  return operationOf.get(`${run} ${pair >= 0 ? nodeId("target", pair) : nodeId(found.side, found.node)}`);
});

/** Returns the node that is selected, or that of the operation that is. @returns {{side: Side, node: number, graph: Graph} | null} */
export function selectedNode(id = state.at ?? "") {
  const [word, side, text] = (nodeOf.get(id)?.id ?? id).split("/");
  if (word !== "graph" || (side !== "target" && side !== "reference")) return null;
  const graph = graphOf(side), node = Number(text);
  return graph && Number.isInteger(node) && node >= 0 && node < graph.count ? { side, node, graph } : null;
}

/** @param {Side} side @returns {Side} */
export function otherSide(side) { return side === "target" ? "reference" : "target"; }

// Pairs that the reader made by hand, by run: target node → reference node.

/** @type {Map<string, Map<number, number>>} */
const handMade = new Map();
let handMadeFor = "";

/** Returns the pairs that were made by hand: those that the state holds. @returns {ReadonlyMap<number, number>} */
export function handPairs(run = currentRun()) {
  const text = state.pairs ?? "";
  if (text !== handMadeFor) {
    handMade.clear();
    for (const part of text.split(" ").filter(Boolean)) {
      const [of, words = ""] = part.split("=");
      handMade.set(of, new Map(words.split(",").filter(Boolean).map((word) => /** @type {[number, number]} */ (word.split("-").map(Number)))));
    }
    handMadeFor = text;
  }
  return handMade.get(run) ?? new Map();
}

/** Puts the pairs of the run that is shown into the state. @param {ReadonlyMap<number, number>} pairs */
export function keepPairs(pairs) {
  const run = currentRun(), all = [...handMade].filter(([of]) => of !== run);
  if (pairs.size) all.push([run, new Map(pairs)]);
  change({ pairs: all.map(([of, made]) => `${of}=${[...made].map(([one, other]) => `${one}-${other}`).join(",")}`).join(" ") });
}

/** Returns the partner of a node; -1 where it has none. @param {Side} side @param {number} node @param {ReadonlyMap<number, number>} [pairs] */
export function partner(side, node, pairs = handPairs()) {
  if (side === "target" && pairs.has(node)) return pairs.get(node) ?? -1;
  if (side === "reference") for (const [target, reference] of pairs) if (reference === node) return target;
  return graphOf(side)?.node(node).match ?? -1;
}

/** Returns the full name of a node: the path of a module, the number of a call. @param {GraphNode} node */
export function fullName({ kind: sort, path, name, forward, backward }) {
  const call = sort === kind.api ? (forward || backward).replace(/\.(forward|backward)$/, "") : "";
  return call || path || name;
}

/** Returns the worse of both halves, or that of the half that is looked at. @param {GraphNode} node @param {string} half */
export function severityOf(node, half = state.half) {
  if (half === "forward") return node.severity;
  return half === "backward" ? node.severity_backward : Math.max(node.severity, node.severity_backward);
}

/**
 * Returns the worse error of both halves, or that of the half that is looked at: the relative difference of one
 * statistic, where the reader has chosen one.
 * @param {GraphNode} node @param {string} half @param {string} measure @returns {number | null}
 */
export function errorOf(node, half = state.half, measure = state.measure ?? "") {
  const name = measure ? `error_${measure}` : "error", forward = node[name], backward = node[`${name}_backward`];
  if (half === "forward") return forward;
  if (half === "backward") return backward;
  return forward === null || backward === null ? forward ?? backward : Math.max(forward, backward);
}

/** Returns findings of a run in order of execution: where differences begin, or NaN and Inf where nothing is compared. */
export function findings() {
  const run = currentRun();
  if (findingsOf.run === run) return findingsOf.ids;
  findingsOf.run = run;
  findingsOf.ids = hasReference ? culpritIds(run) : nonfiniteIds();
  return findingsOf.ids;
}

/** @type {{run: string, ids: string[]}} */
const findingsOf = { run: "", ids: [] };

/** @param {string} run */
function culpritIds(run) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (const { step, rank, side, node, half } of whole.culprits) {
    const graph = graphOf(side, run);
    if (`${step}/${rank}` !== run || !graph) continue;
    const row = graph.isSeen(node) ? graph.node(node) : null;
    found.set(nodeId(side, node), row ? (half === "backward" ? row.order_backward : row.order) : node);
  }
  const add = (/** @type {Side} */ side, /** @type {number} */ node, /** @type {number} */ order) => {
    if (!found.has(nodeId(side, node))) found.set(nodeId(side, node), order);
  };
  const graph = graphOf("target", run);
  for (const row of graph?.suspects() ?? []) {
    if (row.severity >= unmatched) add("target", row.id, row.order);
    else if (row.severity_backward >= unmatched) add("target", row.id, row.order_backward);
  }
  for (const row of graphOf("reference", run)?.suspects() ?? []) {
    if (row.match < 0 && Math.max(row.severity, row.severity_backward) === unmatched) add("reference", row.id, row.order);
  }
  return [...found].sort(([, one], [, other]) => one - other).map(([id]) => id);
}

function nonfiniteIds() {
  const found = [...graphOf("target")?.suspects() ?? []].filter((row) => row.size === 1 && (row.overflow > 1 || row.flags & flag.nonfinite));
  return found.sort((one, other) => one.order - other.order).map(({ id }) => nodeId("target", id));
}

/** Returns the node to open at the start. */
export function firstNode() {
  const { headline } = whole;
  if (headline && headline.node >= 0 && `${headline.step}/${headline.rank}` === currentRun()) return nodeId(headline.side, headline.node);
  return findings()[0] ?? "";
}

/** Shows another step and rank. @param {string} run @param {string} [at] */
export function showRun(run, at = "") { change({ run, at, fold: "", view: "graph" }); }
