// SPDX-License-Identifier: Apache-2.0
// The language of the search box: words, and conditions such as norm>1e4, status:error or dir:backward; with several
// values, a,b, any of them. Of graphs that a server has, msprobe/graph/searching.py finds the same nodes.

import { ask, errorOf, flag, kind, measures, overflows, severityOf } from "./graph.js";

/** @typedef {import("./graph.js").GraphNode} GraphNode */
/** @typedef {import("./graph.js").Graph} Graph */
/** @typedef {[field: string, op: string, value: string]} Condition */
/** @typedef {{words: string[], conditions: Condition[], half: string}} Query */

const condition = /^(name|class|source|dtype|device|norm|grad_norm|error|error_max|error_min|error_mean|error_norm|severity|status|overflow|dir|kind|size|listed)(<=|>=|[:=<>])(.+)$/;

/** What can be searched for, for the help. */
export const examples = ["norm>1e4", "grad_norm>10", "error>=0.01", "status:error", "status:introduced", "dir:backward",
  "class:Linear", "dtype:bfloat16", "source:model.py:47", "overflow:critical", "kind:module"];

/** @param {string} text @returns {Query} */
export function parseQuery(text) {
  /** @type {Query} */
  const query = { words: [], conditions: [], half: "" };
  for (const token of text.trim().split(/\s+/).filter(Boolean)) {
    const found = condition.exec(token.toLowerCase());
    if (!found) query.words.push(token.toLowerCase());
    else if (found[1] === "dir") query.half = "backward".startsWith(found[3]) ? "backward" : "forward";
    else query.conditions.push([found[1], found[2], found[3]]);
  }
  return query;
}

const kinds = ["root", "module", "api", "group", "collection"];

/** @type {Record<string, (node: GraphNode, half: string) => number | null>} */
const numeric = {
  norm: (node) => node.norm, grad_norm: (node) => node.grad_norm, error: (node, half) => errorOf(node, half, ""),
  ...Object.fromEntries(measures.map((name) => [`error_${name}`, (/** @type {GraphNode} */ node, /** @type {string} */ half) => errorOf(node, half, name)])),
 
  severity: (node, half) => severityOf(node, half), overflow: (node) => node.overflow, size: (node) => node.size,
};

/** @type {Record<string, (node: GraphNode, half: string) => string>} */
const textual = {
  name: (node, half) => (half === "backward" ? node.backward : `${node.name} ${node.forward} ${node.backward}`),
  class: (node) => node.class, source: (node) => node.source, dtype: (node) => node.dtype, device: (node) => node.device,
  kind: (node) => kinds[node.kind], overflow: (node) => overflows[node.overflow || (node.flags & flag.nonfinite ? 2 : 0)],
  // What a list without a search holds: calls, and boxes that are findings themselves.
  listed: (node, half) => (node.size === 1 || severityOf(node, half) > 3 ? "1" : ""),
  status: (node, half) => statusWords(node, half),
};

/** @param {GraphNode} node @param {string} half */
function statusWords(node, half) {
  const severity = severityOf(node, half);
  const words = half === "backward" ? [node.status_backward, node.origin_backward]
    : half === "forward" ? [node.status, node.origin] : [node.status, node.origin, node.status_backward, node.origin_backward];
  if (severity >= 3) words.push("error");
  if (severity === 5) words.push("unmatched");
  if (severity === 6) words.push("introduced");
  if (severity === 1 || severity === 2) words.push("pass");
  if (node.flags & flag.nonfinite) words.push("nan", "nonfinite");
  return words.join(" ");
}

/** @type {Record<string, (one: number, other: number) => boolean>} */
const comparisons = {
  ":": (one, other) => one === other, "=": (one, other) => one === other, "<": (one, other) => one < other,
  ">": (one, other) => one > other, "<=": (one, other) => one <= other, ">=": (one, other) => one >= other,
};

/** @param {GraphNode} node @param {Condition} asked @param {string} half */
function holds(node, [field, op, values], half) {
  if (numeric[field] && (op !== ":" || !textual[field])) {
    const found = numeric[field](node, half);
    if (found === null || found === undefined) return false;
    if (Number.isNaN(found)) return values === "nan" || field.startsWith("error") && op.startsWith(">"); // no error is worse
    return values.split(",").some((value) => comparisons[op](found, Number(value)));
  }
  const found = textual[field](node, half).toLowerCase(), padded = ` ${found} `;
  return values.split(",").some((value) => (op === "=" ? padded.includes(` ${value} `) : found.includes(value)));
}

/** @type {WeakMap<GraphNode, string>} */
const haystacks = new WeakMap();

/** @param {GraphNode} node */
function haystack(node) {
  let text = haystacks.get(node);
  if (text === undefined) {
    text = [node.name, node.path, node.label, node.class, node.source, node.dtype].join(" ").toLowerCase();
    haystacks.set(node, text);
  }
  return text;
}

/** Returns whether a query describes a node. @param {Query} query @returns {(node: GraphNode) => boolean} */
export function fits({ words, conditions, half }) {
  return (node) => node.kind !== kind.root
    && (half === "" || (half === "backward" ? node.backward !== "" || node.status_backward !== "" : node.forward !== ""))
    && words.every((word) => haystack(node).includes(word))
    && conditions.every((each) => holds(node, each, half));
}

/**
 * Returns the nodes of a graph that a query describes, in order of execution, and how many there are.
 * @param {Graph} graph @param {string} text @param {number} limit
 * @returns {Promise<{ids: number[], total: number}> | {ids: number[], total: number}}
 */
export function find(graph, text, limit) {
  const query = parseQuery(text);
  if (!graph.isWhole) {
    const conditions = [...query.conditions, ...(query.half ? [["dir", ":", query.half]] : [])];
    return ask("find", { graph: graph.place, text: query.words.join(" "), conditions: JSON.stringify(conditions), limit })
      .then((found) => { graph.see(found); return found; });
  }
  const wanted = fits(query), ids = [];
  for (let node = 1; node < graph.count; node += 1) if (wanted(graph.node(node))) ids.push(node);
  return { ids: ids.slice(0, limit), total: ids.length };
}
