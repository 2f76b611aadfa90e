// SPDX-License-Identifier: Apache-2.0
// The colour of a node, and what it says. Scales run from dark to light in all their colours alike,
// so that readers who see fewer of them keep the order.

import { errorOf, flag, hasReference, overflows, severities, severityOf } from "../data/graph.js";
import { digits } from "../shared/format.js";
import { say } from "../shared/language.js";
import { state } from "../shared/store.js";
import { colour, onTheme } from "../shared/theme.js";

/** @typedef {import("../data/graph.js").GraphNode} GraphNode */
/** @typedef {{fill: string, mark: string, words: string}} Look */

/** @type {Record<string, string>} the group of data/words.js for each severity */
const groups = {
  none: "grey", equal: "agrees", close: "agrees", inherited: "inherited", amplified: "amplified",
  unmatched: "unmatched", introduced: "introduced",
};
const marks = { none: "", equal: "○", close: "○", inherited: "●", amplified: "▲", unmatched: "□", introduced: "◆" };
const overflowColours = ["grey", "amber", "orange", "pink"];
const overflowMarks = ["", "△", "▲", "✕"];
// Nine steps of the map "cividis" (Nuñez, Anderton, Renslow 2018, doi 10.1371/journal.pone.0199239).
const ramp = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55"];
// Eight colours that readers with any colour vision tell apart (Okabe, Ito 2008).
const wheel = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];

/** Ways to colour, each with its title. */
export const modes = () => /** @type {[string, string][]} */ ([
  ...(hasReference ? [["status", say("status and origin")], ["error", say("error")]] : []),
  ["overflow", say("NaN, Inf and overflow")], ["norm", say("norm")], ["gradient", say("gradient norm")],
  ["order", say("time order")], ["class", say("class")], ["device", say("device")], ["dtype", say("data type")],
  ...(hasReference ? [] : [["status", say("no colour")]]),
]);

/** @type {Map<string, string>} */
const theme = new Map();
onTheme(() => theme.clear());

/** Returns a colour of the theme; asked for at each box. @param {string} name */
export function themed(name) {
  let found = theme.get(name);
  if (found === undefined) theme.set(name, found = colour(name));
  return found;
}

/** @type {Map<string, number>} */
let words = new Map();
let range = { low: 0, high: 1 };

/** @type {Record<string, (node: GraphNode) => number | null>} */
const scales = {
  error: (node) => errorOf(node), norm: (node) => node.norm, gradient: (node) => node.grad_norm,
  order: (node) => (node.order >= 0 ? node.order : null),
};

/** Looks at the nodes that colours are to be scaled for. @param {GraphNode[]} nodes */
export function scaleColours(nodes) {
  const mode = state.colour, read = scales[mode];
  words = new Map();
  if (!read) {
    for (const node of nodes) if (node[mode] && !words.has(node[mode])) words.set(node[mode], words.size);
    return;
  }
  const found = nodes.map(read).filter((value) => value !== null && Number.isFinite(value) && (value > 0 || mode === "order"));
  const values = /** @type {number[]} */ (found).map((value) => onScale(value));
  range = { low: Math.min(...values, Infinity), high: Math.max(...values, -Infinity) };
  if (!(range.low <= range.high)) range = { low: 0, high: 1 };
}

/** @param {number} value */
function onScale(value) { return state.colour === "order" ? value : Math.log10(value); }

/** Returns whether a node passes the thresholds for its error that the reader has set. @param {GraphNode} node */
export function isBeyond(node) {
  const error = errorOf(node);
  return error !== null && !(error <= 10 ** Number(state.limit));
}

/** Returns the colour of a node; that of a closed box tells of everything in it. @param {GraphNode} node @param {boolean} isClosed */
export function look(node, isClosed) {
  const mode = state.colour;
  if (mode === "status") return byStatus(node, isClosed);
  if (mode === "overflow") return byOverflow(node);
  const read = scales[mode];
  if (!read) return byWord(node[mode]);
  const value = read(node);
  if (value === null || value === undefined) return { fill: "", mark: "", words: say("nothing known") };
  if (!Number.isFinite(value)) return { fill: themed("pink"), mark: "✕", words: digits(value) };
  if (value <= 0 && mode !== "order") return { fill: ramp[0], mark: "", words: "0" };
  const share = (onScale(value) - range.low) / (range.high - range.low || 1);
  return { fill: ramp[Math.round(share * (ramp.length - 1))], mark: "", words: digits(value) };
}

/** @param {GraphNode} node @param {boolean} isClosed @returns {Look} */
function byStatus(node, isClosed) {
  const level = isClosed && node.size > 1 ? Math.max(node.worst, severityOf(node)) : severityOf(node);
  const name = severities[state.limit !== "" && level >= 2 && level <= 4 && node.size === 1 ? (isBeyond(node) ? 4 : 2) : level];
  return { fill: name === "none" ? "" : themed(groups[name]), mark: marks[/** @type {keyof typeof marks} */ (name)], words: say(name) };
}

/** @param {GraphNode} node @returns {Look} */
function byOverflow(node) {
  const level = Math.max(node.overflow, node.flags & flag.nonfinite ? 2 : 0);
  return { fill: level ? themed(overflowColours[level]) : "", mark: overflowMarks[level], words: say(overflows[level]) };
}

/** @param {string} word @returns {Look} */
function byWord(word) {
  const place = words.get(word);
  return { fill: place === undefined ? "" : wheel[place % wheel.length], mark: "", words: word };
}

/** Returns colours with their meanings. @returns {Look[]} */
export function legend() {
  if (state.colour === "status") {
    return hasReference ? severities.slice(1).reverse().filter((name) => name !== "close").map((name) => ({
      fill: themed(groups[name]), mark: marks[/** @type {keyof typeof marks} */ (name)], words: say(name === "equal" ? "agrees" : name) })) : [];
  }
  if (state.colour === "overflow") {
    return [3, 2, 1].map((level) => ({ fill: themed(overflowColours[level]), mark: overflowMarks[level], words: say(overflows[level]) }));
  }
  if (!scales[state.colour]) return [...words.keys()].slice(0, wheel.length).map((word) => byWord(word));
  const value = (/** @type {number} */ share) => {
    const place = range.low + share * (range.high - range.low);
    return digits(state.colour === "order" ? Math.round(place) : Number((10 ** place).toPrecision(2)));
  };
  return [0, .25, .5, .75, 1].map((share) => ({ fill: ramp[Math.round(share * (ramp.length - 1))], mark: "", words: value(share) }));
}
