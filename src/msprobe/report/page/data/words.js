// SPDX-License-Identifier: Apache-2.0
// The words of comparisons: their meanings, order, and the sign of each.

import { say } from "../shared/language.js";
import { element } from "../shared/dom.js";
import { sections } from "../shared/sections.js";

/**
 * @type {{
 *   statuses: Record<string, string>, severity: string[], differences: string[],
 *   origins: Record<string, string>, modes: Record<string, string>,
 * }}
 */
export const words = sections.words ?? { statuses: {}, severity: [], differences: [], origins: {}, modes: {} };

const glyphs = {
  introduced: "◆", amplified: "▲", input: "▶", inherited: "●", agrees: "○", nonfinite: "✕",
  other: "■", unmatched: "□", unread: "?",
};

const differences = new Set(words.differences);

/** @param {string} status */
export function isDifference(status) { return differences.has(status); }

/** Returns whether both values are known and agree. @param {string} status */
export function agrees(status) { return !isDifference(status) && status !== "unread"; }

/** Returns the group that a status without an origin belongs to. @param {string} status */
export function groupOf(status) {
  if (agrees(status)) return "agrees";
  if (status === "nonfinite" || status === "unread") return status;
  return status === "missing" || status === "added" ? "unmatched" : "other";
}

/** Returns how many values differ. @param {Record<string, number>} counts by status */
export function countDifferent(counts) {
  return words.differences.reduce((sum, word) => sum + (counts[word] ?? 0), 0);
}

/** Returns the sign of a group. @param {string} group */
export function mark(group, meaning = say(words.origins[group] ?? group)) {
  const attributes = { class: `mark ${group}`, title: meaning, "aria-hidden": "true" };
  return element("span", attributes, glyphs[/** @type {keyof typeof glyphs} */ (group)] ?? glyphs.agrees);
}

/**
 * Returns what to call a step and rank; a process without a number has a folder of its own name.
 * @param {number} step @param {string} rank
 */
export function placeName(step, rank) {
  if (rank === "rank") return say("step {}", step);
  return /^\d+$/.test(rank) ? say("step {}, rank {}", step, rank) : `${say("step {}", step)}, ${rank}`;
}
