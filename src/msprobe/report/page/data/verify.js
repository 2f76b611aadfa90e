// SPDX-License-Identifier: Apache-2.0
// The judged results of one dump. The other side of this is checks/verify_page.py.

import { number, rows, sections } from "../shared/sections.js";
import { matcher } from "../shared/search.js";
import { state, words } from "../shared/store.js";

/**
 * @typedef {object} Result
 * @property {string} id
 * @property {number} step
 * @property {string} rank
 * @property {number} position
 * @property {string} record
 * @property {string} slot
 * @property {string} operator
 * @property {string | null} verdict
 * @property {number | null} ratio own error in parts of the allowed one
 * @property {number | null} ulps
 * @property {number | null} error
 * @property {number | null} relative
 * @property {number | null} allowed
 * @property {number | null} index of the element that decided
 * @property {string} dtype
 * @property {string} shape
 * @property {string | null} reason why it was not judged
 * @property {string | null} remark
 * @property {string | null} source
 * @property {string} by
 * @property {boolean} generated
 * @property {string | null} found
 * @property {string | null} expected
 * @property {number[] | null} histogram
 */

/** @type {any} */
export const verify = sections.verify;

/** @type {Record<string, [group: string, meaning: string]>} */
export const verdicts = {
  wrong: ["introduced", "an error that nothing explains"],
  suspicious: ["amplified", "an error larger than allowed, up to four times"],
  overflow: ["nonfinite", "beyond the range of its type, and so would every right result be"],
  rounding: ["inherited", "an error that its type, its sums and its condition allow"],
  exact: ["agrees", "as near to the true result as its type can be"],
  "not judged": ["unread", "could not be computed again"],
};

/** Returns the word for the verdict on a result. @param {Result} result */
export function verdictOf(result) { return result.verdict ?? "not judged"; }

/** @type {Result[]} */
export const results = readResults();

function readResults() {
  const count = sections.results?.step.length ?? 0, read = rows("results");
  return Array.from({ length: count }, (_, place) => ({ ...read(place), id: String(place) }));
}

/** Returns the operators, the one with the largest error first. */
export function operators() {
  /** @type {any[][]} */
  const found = verify.operators;
  return found.map(([name, count, judged, faults, ratio, ulps]) => (
    { name, count, judged, faults, ratio: number(ratio), ulps: number(ulps) }))
    .sort((a, b) => (b.ratio ?? -1) - (a.ratio ?? -1));
}

export const filters = { q: "", verdict: "", operator: "", sort: "error" };

/** Returns the results that fit the filters, in the order that is asked for. */
export function shownResults() {
  const fits = matcher("q"), wanted = new Set(words("verdict"));
  const shown = results.filter((each) => (!wanted.size || wanted.has(verdictOf(each)))
    && (!state.operator || each.operator === state.operator)
    && fits(() => `${each.record} ${each.slot} ${each.dtype} ${each.source ?? ""}`.toLowerCase()));
  return state.sort === "order" ? shown : shown.sort((a, b) => height(b) - height(a));
}

/** @param {Result} result */
function height({ verdict, ratio }) {
  if (ratio === null) return -1;
  return ratio + (verdict === "wrong" ? 1e300 : verdict === "suspicious" ? 1e200 : 0);
}

/** Returns the result that is selected. @returns {Result | undefined} */
export function selected() { return state.at === "" ? undefined : results[Number(state.at)]; }
