// SPDX-License-Identifier: Apache-2.0
// Runs of the monitor: the overview, and answers of the server, or of the file that the page was exported to.
// The other side of this is monitor/pictures.py.

import { say } from "../shared/language.js";
import { number, sections } from "../shared/sections.js";

/** @typedef {{run: number, rank: number, steps: number[], values: (number | string | null)[]}} Line */
/** @typedef {{stream: string, name: string, op: string, lines: Line[]}} Series */
/**
 * @typedef {object} Heat
 * @property {string} axis
 * @property {string} at which layer of ranks over steps, which step of layers over ranks
 * @property {string[]} rows
 * @property {number} of_rows
 * @property {number[]} columns
 * @property {number} of_columns
 * @property {number} bytes_each
 * @property {string} values row by row, in base64
 */

const every_ms = 3000;
let current = sections.monitor;
/** @type {(() => void)[]} */
const listeners = [];

/** Returns runs, streams, scalars and incidents, as they are now. */
export function overview() { return current; }

/** Whether a server answers, and all that it knows can be asked for. */
export const isLive = Boolean(sections.monitor_live);

/** Calls back when the run has grown. @param {() => void} listener */
export function onGrowth(listener) { listeners.push(listener); }

/**
 * Returns an answer; null where an exported page does not have it.
 * @param {string} question
 * @param {Record<string, string>} parameters
 * @returns {Promise<any>}
 */
export async function ask(question, parameters) {
  const known = Object.entries(parameters).filter(([, value]) => value !== "").sort();
  const key = `${question}?${new URLSearchParams(known)}`;
  if (!isLive) return sections.monitor_answers?.[key] ?? null;
  const answer = await fetch(key);
  return answer.ok ? answer.json() : null;
}

/** Returns a value as a number, null where it was absent. @param {number | string | null} value */
export function read(value) { return value === null ? null : number(value); }

/**
 * Returns the cells of a heat map, row by row, and whether one was absent.
 * @param {Heat} heat
 */
export function cellsOf({ values, bytes_each }) {
  const known = /** @type {any} */ (Uint8Array); // only newer browsers do it at once
  const { buffer } = known.fromBase64?.(values) ?? Uint8Array.from(atob(values), (each) => each.charCodeAt(0));
  const lows = new Uint32Array(buffer), apart = bytes_each / 4;
  /** @type {Float32Array | Float64Array} */
  const cells = apart === 1 ? new Float32Array(buffer) : new Float64Array(buffer);
  return { cells, isAbsent: (/** @type {number} */ at) => Number.isNaN(cells[at]) && (lows[at * apart] & 1) === 1 };
}

/** Returns the name of a line among several. @param {Line} line */
export function lineName(line) {
  const { runs } = overview();
  const run = runs.length > 1 ? say(["target", "reference"][line.run]) : "";
  const rank = runs[line.run].ranks.length > 1 ? say("rank {}", line.rank) : "";
  return [run, rank].filter(Boolean).join(", ") || say("value");
}

/** Follows a run that may grow. */
export function followGrowth() {
  if (!isLive) return;
  setInterval(async () => {
    const found = await ask("growth", {}).catch(() => null);
    if (!found || found.version === current.version) return;
    current = await ask("overview", {}) ?? current;
    listeners.forEach((listener) => listener());
  }, every_ms);
}
