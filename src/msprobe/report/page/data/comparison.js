// SPDX-License-Identifier: Apache-2.0
// The operations of a comparison, their values, and which of them the filters let through.
// The other side of this is comparison_page.py.

import { matcher } from "../shared/search.js";
import { column, number, rows, sections } from "../shared/sections.js";
import { state, words as chosen } from "../shared/store.js";
import { agrees, groupOf, isDifference, words } from "./words.js";

/**
 * @typedef {object} Operation
 * @property {string} id step, rank and order
 * @property {number} place
 * @property {number} first place of its first value
 * @property {number} rows how many values it has
 * @property {number} step
 * @property {string} rank
 * @property {number} order
 * @property {string} name
 * @property {string} title what it is called where its module is known
 * @property {string} direction
 * @property {string} label title and direction
 * @property {string} module
 * @property {string} match
 * @property {number} confidence
 * @property {string | null} source line of code that made the call: the reader's own, a library's beside it
 * @property {number | null} errorIn
 * @property {number | null} errorOut
 * @property {number} interest
 * @property {any} culprit what the summary says of it, if a difference begins here
 * @property {string} status the worst of its values
 * @property {string | null} origin the most telling of its values
 * @property {string} kind of that value
 * @property {number} worst place of that value
 * @property {boolean} differs
 * @property {string} group
 * @property {string | null} unmeasuredIn
 * @property {string | null} unmeasuredOut
 */

/** @type {Record<string, any>} */
export const summary = sections.summary ?? { comparisons: [], introduced: [], counts: {}, origins: {} };
export const originNames = Object.keys(words.origins);
export const severalRuns = summary.comparisons.length > 1;

/** @type {Record<string, number>} */
const severity = Object.fromEntries(words.severity.map((word, place) => [word, place]));
/** @type {Record<string, number>} */
const originPlace = Object.fromEntries(originNames.map((word, place) => [word, place]));
const value = {
  status: column("values", "status"), origin: column("values", "origin"), kind: column("values", "kind"),
  role: column("values", "role"), error: column("values", "error"), slot: column("values", "slot"),
};

/** Returns a value of an operation, with all that is known of it. */
export const readValue = rows("values");
export const valueError = value.error;

/** @returns {Operation[]} */
function readOperations() {
  const [step, rank, order, name, label, direction, module] = columns(
    "step", "rank", "order", "operation", "label", "direction", "module");
  const [match, confidence, source, rowCount, errorIn, errorOut, interest] = columns(
    "match", "confidence", "source", "rows", "error_in", "error_out", "interest");
  const operations = [];
  let first = 0;
  for (let place = 0; place < (sections.shown?.operations ?? 0); place += 1) {
    const operation = {
      place, first, rows: rowCount(place), step: step(place), rank: rank(place), order: order(place),
      id: `${step(place)}/${rank(place)}/${order(place)}`, name: name(place), title: label(place), direction: direction(place),
      label: `${label(place)} ${direction(place)}`.trim(), module: module(place) ?? "", match: match(place),
      confidence: confidence(place), source: source(place), errorIn: errorIn(place), errorOut: errorOut(place),
      interest: interest(place), culprit: null,
    };
    first += operation.rows;
    operations.push(Object.assign(operation, judge(operation), findUnmeasured(operation)));
  }
  return operations;
}

/** @param {...string} names */
function columns(...names) { return names.map((name) => column("operations", name)); }

/**
 * Returns the worst status of an operation, its most telling origin, and the kind of that value.
 * @param {{first: number, rows: number}} operation
 */
function judge({ first, rows: count }) {
  let worst = first, weight = Infinity, status = "equal", origin = null;
  for (let row = first; row < first + count; row += 1) {
    const rowStatus = value.status(row), rowOrigin = value.origin(row);
    const telling = originPlace[rowOrigin] ?? originNames.length;
    const rowWeight = telling * 100 + severity[rowStatus];
    if (rowWeight < weight) { weight = rowWeight; worst = row; origin = rowOrigin; }
    if (severity[rowStatus] < severity[status]) status = rowStatus;
  }
  return { status, origin, kind: value.kind(worst), worst, differs: isDifference(status), group: origin ?? groupOf(status) };
}

/**
 * Returns the status of a value that went in or came out, where it does not agree and has no error in numbers.
 * @param {{first: number, rows: number}} operation
 */
function findUnmeasured({ first, rows: count }) {
  const found = { unmeasuredIn: null, unmeasuredOut: null };
  for (let row = first; row < first + count; row += 1) {
    const status = value.status(row);
    if (agrees(status) || value.error(row) !== null) continue;
    const role = value.role(row);
    const side = role === "input" || role === "parameter" ? "unmeasuredIn" : "unmeasuredOut";
    if (found[side] === null || severity[status] < severity[found[side]]) found[side] = status;
  }
  return found;
}

export const operations = readOperations();
const byId = new Map(operations.map((each) => [each.id, each]));

/** Read what is selected where another part of the page has named it. @type {((id: string) => Operation | undefined)[]} */
export const otherNames = [];

/** Returns the operation that is selected, if the page holds it. @returns {Operation | undefined} */
export function selected() { return operationOf(state.at); }

/** @param {string} id @returns {Operation | undefined} */
function operationOf(id) { return byId.get(id) ?? otherNames.map((read) => read(id)).find(Boolean); }

/** Returns the operation at a place of the summary, if the page holds it. @param {any} place */
export function operationAt(place) { return place ? byId.get(`${place.step}/${place.rank}/${place.order}`) : undefined; }

// The culprits as the comparison ranked them come first, whatever their errors.
summary.introduced.forEach((/** @type {any} */ culprit, /** @type {number} */ place) => {
  const operation = operationAt(culprit);
  if (operation && operation.interest >= 0) {
    operation.interest = place - summary.introduced.length;
    operation.culprit = culprit;
    operation.source = culprit.place || operation.source;
  }
});

/** Returns the value of an operation that is looked at: the one that was picked, or the worst. @param {Operation} operation */
export function pickedValue({ first, rows: count, worst }) {
  for (let row = first; row < first + count; row += 1) if (value.slot(row) === state.part) return row;
  return worst;
}

/** Returns the next operation where a difference begins. @param {number} by 1 or -1 */
export function nextIntroduced(by) {
  const found = operations.filter((each) => each.origin === "introduced" && inRun(each));
  const operation = selected();
  const here = operation ? found.indexOf(operation) : -1;
  if (here >= 0) return found.length > 1 ? found[(here + by + found.length) % found.length] : null;
  return found.find((each) => each.interest < 0 && each.culprit === summary.introduced[0]) ?? found[0] ?? null;
}

// The scale of errors: whole decades, from 1e-14 to 1e12 at most.

function decades() {
  let low = 0, high = -8;
  const see = (/** @type {number | null} */ error) => {
    if (error === null || !(error > 0) || !Number.isFinite(error)) return;
    low = Math.min(low, Math.floor(Math.log10(error)));
    high = Math.max(high, Math.ceil(Math.log10(error)));
  };
  operations.forEach((each) => { see(each.errorIn); see(each.errorOut); });
  sections.profile?.forEach((/** @type {any[]} */ [, , , error]) => see(number(error)));
  low = Math.max(Math.min(low, -2), -14);
  return { low, high: Math.min(Math.max(high, low + 2), 12) };
}

/** The first and the last decade. */
export const scale = decades();

/** Returns where an error is on the scale, from 0 to 1. @param {number | null} error */
export function errorShare(error) {
  if (error === null || !(error > 0)) return 0;
  return Math.min(Math.max((Math.log10(error) - scale.low) / (scale.high - scale.low), 0), 1);
}

// Filters

const isDifferent = !summary.equal && operations.some((each) => each.differs);

/** What may be shown; each is empty where everything may. */
export const filters = { q: "", status: "", origin: "", kind: "", differences: isDifferent ? "only" : "all", sort: "interest" };

/** Names of the state that decide which operations are shown. */
export const filterNames = [...Object.keys(filters), "module", "run"];

/** Shows everything. */
export const noFilters = { ...filters, differences: "all", module: "", run: "" };

/** @param {string} module @param {string} path */
export function isUnder(module, path) { return !path || module === path || module.startsWith(`${path}.`); }

/** Returns whether an operation ran in the step and rank that are chosen. @param {Operation} operation */
export function inRun({ step, rank }) { return !state.run || `${step}/${rank}` === state.run; }

/** @type {Map<Operation, string>} */
const haystacks = new Map();

/** @param {Operation} operation */
function haystack(operation) {
  let text = haystacks.get(operation);
  if (text === undefined) {
    text = [operation.name, operation.label, operation.module, operation.source, operation.culprit?.reason]
      .filter(Boolean).join(" ").toLowerCase();
    haystacks.set(operation, text);
  }
  return text;
}

// All filters must hold for one and the same value.
function valueFilter() {
  const asked = /** @type {const} */ (["status", "origin", "kind"])
    .map((name) => ({ read: value[name], words: new Set(chosen(name)) })).filter(({ words: held }) => held.size);
  if (!asked.length) return () => true;
  return (/** @type {Operation} */ { first, rows: count }) => {
    for (let row = first; row < first + count; row += 1) {
      if (asked.every(({ read, words: held }) => held.has(read(row)))) return true;
    }
    return false;
  };
}

// What should have a number and has none weighs most; what has no partner can have none.
/** @param {Operation} operation */
function weightOf(operation) {
  if (operation.match === "unmatched") return -2;
  const errors = [operation.errorIn, operation.errorOut].filter((error) => error !== null);
  if (!errors.length || errors.some(Number.isNaN)) return agrees(operation.status) ? -1 : Infinity;
  return Math.max(...errors);
}

/** @type {Record<string, (left: Operation, right: Operation) => number>} */
const orders = {
  interest: (left, right) => left.interest - right.interest,
  order: (left, right) => left.place - right.place,
  error: (left, right) => compare(weightOf(right), weightOf(left)) || left.interest - right.interest,
};

/** @param {number} left @param {number} right */
function compare(left, right) { return left === right ? 0 : left - right; }

/** @type {Operation[]} */
let shown = [];
let shownFor = "";

/** Returns the operations that the filters let through, in the order that is chosen; the same list while both stay. */
export function shownOperations() {
  const wanted = JSON.stringify(filterNames.map((name) => state[name]));
  if (wanted === shownFor) return shown;
  shownFor = wanted;
  const matches = matcher("q"), hasValue = valueFilter();
  shown = operations.filter((each) => (state.differences !== "only" || each.differs) && inRun(each)
    && isUnder(each.module, state.module) && matches(() => haystack(each)) && hasValue(each));
  shown.sort(Object.hasOwn(orders, state.sort) ? orders[state.sort] : orders.interest);
  return shown;
}
