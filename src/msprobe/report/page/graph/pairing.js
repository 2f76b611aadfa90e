// SPDX-License-Identifier: Apache-2.0
// Pairs made by hand: one node of each side, and what is in them where it has the same names. They change the picture,
// not the comparison; saved, they are a mapping that the next comparison takes.

import { currentRun, graphOf, handPairs, keepPairs, nodeId, otherSide, partner } from "../data/graph.js";
import { say } from "../shared/language.js";
import { change, declare, state } from "../shared/store.js";
import { chooseFile, saveFile } from "./saving.js";

/** @typedef {import("../data/graph.js").Side} Side */
/** @typedef {import("../data/graph.js").Graph} Graph */

declare({ pairing: "", pairs: "" });

/** Keeps a node; the next one chosen on the other side becomes its partner. @param {Side} side @param {number} node */
export function chooseNode(side, node) {
  const [keptSide, kept] = state.pairing.split("/");
  if (keptSide === otherSide(side)) {
    if (side === "target") pairUp(node, Number(kept)); else pairUp(Number(kept), node);
    change({ pairing: "" });
  } else change({ pairing: `${side}/${node}` });
}

/** Pairs two nodes, and what is in them. @param {number} target @param {number} reference @param {boolean} [withInner] */
export function pairUp(target, reference, withInner = true) {
  const one = graphOf("target"), other = graphOf("reference");
  if (!one || !other || partner("target", target) >= 0 || partner("reference", reference) >= 0) return;
  const pairs = new Map(handPairs()).set(target, reference);
  if (withInner) pairInner(pairs, one, target, other, reference);
  keepPairs(pairs);
}

/** @param {Map<number, number>} pairs @param {Graph} one @param {number} target @param {Graph} other @param {number} reference */
function pairInner(pairs, one, target, other, reference) {
  /** @type {Map<string, number[]>} */
  const byName = new Map();
  for (const child of other.children(reference)) {
    const { label, class: type } = other.node(child), key = `${label} ${type}`;
    byName.set(key, [...byName.get(key) ?? [], child]);
  }
  for (const child of one.children(target)) {
    const { label, class: type } = one.node(child), match = byName.get(`${label} ${type}`)?.shift();
    if (match === undefined || partner("target", child, pairs) >= 0 || partner("reference", match, pairs) >= 0) continue;
    pairs.set(child, match);
    pairInner(pairs, one, child, other, match);
  }
}

/** Undoes a pair made by hand, and those in it. @param {number} target */
export function unpair(target) {
  const graph = graphOf("target");
  keepPairs(new Map([...handPairs()].filter(([node]) => !graph?.isIn(node, target))));
}

/** Returns all pairs with the names of both. */
export function namedPairs() {
  const one = graphOf("target"), other = graphOf("reference");
  if (!one || !other) return [];
  const isCall = (/** @type {Graph} */ graph, /** @type {number} */ node) => Boolean(graph.node(node).forward || graph.node(node).backward);
  return [...handPairs()].map(([target, reference]) => ({
    target, reference, names: [recordOf(one, target), recordOf(other, reference)], isCall: isCall(one, target) && isCall(other, reference),
  }));
}

/** @param {Graph} graph @param {number} node */
function recordOf(graph, node) {
  const { forward, backward, name } = graph.node(node);
  return forward || backward || name;
}

/** Saves the pairs as a file, which `msprobe graph --pairs` and `msprobe compare --pairs` read; boxes that are no calls are left out. */
export function savePairs() {
  const pairs = Object.fromEntries(namedPairs().filter(({ isCall }) => isCall).map(({ names }) => names));
  saveFile(`pairs-${currentRun().replace(/\W+/g, "-")}.json`, new Blob([`${JSON.stringify({ pairs }, null, 1)}\n`], { type: "application/json" }));
}

/** Takes pairs from a file; returns how many, or what is wrong with it. @returns {Promise<string>} */
export async function loadPairs() {
  const text = await chooseFile(), one = graphOf("target"), other = graphOf("reference");
  if (!one || !other) return "";
  try {
    const held = JSON.parse(text).pairs, targets = byRecord(one), references = byRecord(other);
    const known = Object.entries(held).filter(([target, reference]) => targets.has(target) && references.has(/** @type {string} */ (reference)));
    known.forEach(([target, reference]) => pairUp(targets.get(target) ?? -1, references.get(/** @type {string} */ (reference)) ?? -1, false));
    return say("{} of {} pairs taken", known.length, Object.keys(held).length);
  } catch { return say("this file holds no pairs"); }
}

/** @param {Graph} graph @returns {Map<string, number>} */
function byRecord(graph) {
  const found = new Map();
  for (let node = 1; node < graph.count; node += 1) if (graph.isKnown(node)) found.set(recordOf(graph, node), node);
  return found;
}

/** Shows a node. @param {Side} side @param {number} node */
export function goTo(side, node) { change({ at: nodeId(side, node), part: "", view: "graph" }); }
