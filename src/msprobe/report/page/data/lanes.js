// SPDX-License-Identifier: Apache-2.0
// Data and optimizer steps of both sides, by step and rank. The other side of this is compare/fact_lanes.py.

import { sections } from "../shared/sections.js";

/**
 * @typedef {object} Entry
 * @property {string} name
 * @property {boolean} same whether it is the same on both sides
 * @property {[name: string, target: string | null, reference: string | null][]} facts
 */

/** @typedef {{step: number, rank: string, data: Entry[], events: Entry[]}} Lanes */

/** @type {Lanes[]} */
export const lanes = sections.lanes ?? [];

/** Returns what the state calls an entry. @param {Lanes} lane @param {"data" | "events"} kind @param {number} place */
export function entryId({ step, rank }, kind, place) { return `${kind}/${place}/${step}/${rank}`; }

/** Returns the entry that a state names. @param {string} id */
export function entryAt(id) {
  const [kind, place, step, ...rank] = id.split("/");
  if (kind !== "data" && kind !== "events") return null;
  const lane = lanes.find((each) => String(each.step) === step && each.rank === rank.join("/"));
  const entry = lane?.[kind][Number(place)];
  return lane && entry ? { lane, kind, entry } : null;
}
