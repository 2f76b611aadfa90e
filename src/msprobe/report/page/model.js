// SPDX-License-Identifier: Apache-2.0
// The data of the page: operations, their values, and which of them the filters let through.
// Only reader of what comparison_page_data.py writes.

const data = JSON.parse(document.getElementById("data").textContent);
const { summary, words, texts } = data;
const severity = new Map(words.severity.map((word, place) => [word, place]));
const isDifference = new Set(words.differences);
const originNames = Object.keys(words.origins);
const originPlace = new Map(originNames.map((word, place) => [word, place]));
const textColumns = new Set(["rank", "operation", "label", "direction", "module", "match", "source", "kind", "role",
  "slot", "status", "origin", "reason", "target_name", "reference_name", "target_dtype",
  "reference_dtype", "target_shape", "reference_shape", "target_value", "reference_value",
  "first_nonfinite", "max_abs_index", "max_rel_index", "target_md5", "reference_md5",
  "target_file", "reference_file"]);

// NaN and infinities are words in JSON.
function number(value) {
  if (typeof value !== "string") return value;
  return value === "NaN" ? NaN : value === "Infinity" ? Infinity : -Infinity;
}

function cell(table, name, place) {
  const column = table[name];
  if (column === undefined) return null;
  const value = column.length === 1 ? column[0] : column[place];
  if (value === null || value === undefined) return null;
  return textColumns.has(name) ? texts[value] : number(value);
}

// One value of an operation, with all that is known of it.
function readValue(place) {
  const value = {};
  for (const name of Object.keys(data.values)) value[name] = cell(data.values, name, place);
  return value;
}

function readOperations() {
  const table = data.operations;
  const count = data.shown.operations;
  const operations = [];
  let first = 0;
  for (let place = 0; place < count; place += 1) {
    const operation = {
      place, first,
      step: cell(table, "step", place), rank: cell(table, "rank", place),
      order: cell(table, "order", place), name: cell(table, "operation", place),
      title: cell(table, "label", place), direction: cell(table, "direction", place), module: cell(table, "module", place) ?? "",
      match: cell(table, "match", place), confidence: cell(table, "confidence", place),
      source: cell(table, "source", place), rows: cell(table, "rows", place),
      errorIn: cell(table, "error_in", place), errorOut: cell(table, "error_out", place),
      interest: cell(table, "interest", place),
    };
    operation.label = `${operation.title} ${operation.direction}`.trim();
    first += operation.rows;
    operations.push(Object.assign(operation, judge(operation)));
  }
  return operations;
}

// What an operation amounts to: its worst status, most telling origin and the kind of that value.
function judge(operation) {
  let worst = operation.first, weight = Infinity, status = "equal", origin = null;
  for (let row = operation.first; row < operation.first + operation.rows; row += 1) {
    const rowStatus = cell(data.values, "status", row), rowOrigin = cell(data.values, "origin", row);
    const telling = originPlace.get(rowOrigin) ?? originNames.length;
    const rowWeight = telling * 100 + severity.get(rowStatus);
    if (rowWeight < weight) { weight = rowWeight; worst = row; origin = rowOrigin; }
    if (severity.get(rowStatus) < severity.get(status)) status = rowStatus;
  }
  const kind = cell(data.values, "kind", worst);
  const unmeasured = findUnmeasured(operation);
  const differs = isDifference.has(status);
  const group = origin ?? (!differs ? "agrees" : groupOf(status));
  return { status, origin, kind, worst, differs, group, ...unmeasured };
}

// The status of a value that went in or came out, where it differs and has no error in numbers.
function findUnmeasured(operation) {
  const found = { unmeasuredIn: null, unmeasuredOut: null };
  for (let row = operation.first; row < operation.first + operation.rows; row += 1) {
    const status = cell(data.values, "status", row);
    if (!isDifference.has(status) || cell(data.values, "error", row) !== null) continue;
    const role = cell(data.values, "role", row);
    const side = role === "input" || role === "parameter" ? "unmeasuredIn" : "unmeasuredOut";
    if (found[side] === null || severity.get(status) < severity.get(found[side])) found[side] = status;
  }
  return found;
}

function groupOf(status) {
  return status === "missing" || status === "added" ? "unmatched" : status === "nonfinite" ? "nonfinite" : "other";
}

const operations = readOperations();
const byPlace = new Map(operations.map((each) => [placeKey(each), each]));
const severalComparisons = summary.comparisons.length > 1;

// A process without a number has a folder of its own name.
function placeName(step, rank) {
  if (rank === "rank") return `step ${step}`;
  return /^\d+$/.test(rank) ? `step ${step}, rank ${rank}` : `step ${step}, ${rank}`;
}

function placeKey(each) { return `${each.step}/${each.rank}/${each.order}`; }
function operationAt(place) { return place ? byPlace.get(placeKey(place)) : undefined; }

// The culprits as the comparison ranked them come first, whatever their errors.
summary.introduced.forEach((culprit, place) => {
  const operation = operationAt(culprit);
  if (operation && operation.interest >= 0) {
    operation.interest = place - summary.introduced.length;
    operation.culprit = culprit;
  }
});

// What may be shown; each set is empty where everything may.
const filters = {
  text: "", module: "", comparison: "", onlyDifferences: !summary.equal && operations.some((each) => each.differs),
  status: new Set(), origin: new Set(), kind: new Set(),
};

function isUnder(module, path) {
  return path === "" || module === path || module.startsWith(`${path}.`);
}

function haystack(operation) {
  operation.haystack ??= [operation.name, operation.label, operation.module, operation.source, operation.culprit?.reason]
    .filter(Boolean).join(" ").toLowerCase();
  return operation.haystack;
}

// All groups must hold for one and the same value.
function hasValue(operation) {
  if (!filters.status.size && !filters.origin.size && !filters.kind.size) return true;
  const holds = (name, row) => !filters[name].size || filters[name].has(cell(data.values, name, row));
  for (let row = operation.first; row < operation.first + operation.rows; row += 1) {
    if (holds("status", row) && holds("origin", row) && holds("kind", row)) return true;
  }
  return false;
}

function inComparison(operation) {
  return !filters.comparison || `${operation.step}/${operation.rank}` === filters.comparison;
}

function isShown(operation, asked) {
  if (filters.onlyDifferences && !operation.differs) return false;
  if (!inComparison(operation) || !isUnder(operation.module, filters.module)) return false;
  return asked.every((word) => haystack(operation).includes(word)) && hasValue(operation);
}

// What should have a number and has none weighs most; what has no partner can have none.
function weightOf(operation) {
  if (operation.match === "unmatched") return -2;
  const errors = [operation.errorIn, operation.errorOut].filter((error) => error !== null);
  if (!errors.length || errors.some(Number.isNaN)) return operation.differs ? Infinity : -1;
  return Math.max(...errors);
}

const orders = {
  interest: (left, right) => left.interest - right.interest,
  order: (left, right) => left.place - right.place,
  error: (left, right) => compare(weightOf(right), weightOf(left)) || left.interest - right.interest,
};

function compare(left, right) { return left === right ? 0 : left - right; }

function selectOperations(orderName) {
  const asked = filters.text.toLowerCase().split(/\s+/).filter(Boolean);
  return operations.filter((each) => isShown(each, asked)).sort(orders[orderName]);
}
