// SPDX-License-Identifier: Apache-2.0
// The answer: its evidence, where differences begin, what differs first, how large errors are.

import { say } from "../shared/language.js";
import { noFilters, operationAt, operations, readValue, severalRuns, summary } from "../data/comparison.js";
import { countDifferent, groupOf, mark, placeName, words } from "../data/words.js";
import { open } from "../shared/detail.js";
import {
  breakable, element, facts, items, joined, link, replace, span, table, title,
} from "../shared/dom.js";
import { folded } from "../shared/folds.js";
import { bytes, digits, grouped, plural } from "../shared/format.js";
import { column, number, sections } from "../shared/sections.js";
import { change } from "../shared/store.js";
import { shape } from "../shared/svg.js";

/** @typedef {import("../shared/dom.js").Child} Child */

/** @type {HTMLElement} */
let pane;

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "answer", title: "Overview", place: "detail", needs: ["summary"], uses: [],

  start(made) { pane = made; },

  render() {
    replace(pane, ...evidence(), ...culprits(), ...firstDifference(), ...distribution(), ...comparisonTable(),
      ...unread(), ...unmatched(), ...pairing(), ...replicas(), ...notes(), ...about());
  },
};

/**
 * Returns a card that leads to an operation, if the page holds it.
 * @param {any} place in the summary
 * @param {string} group
 * @param {string} error
 * @param {string} where
 * @param {{label?: string, count?: number, reason?: string}} [culprits] what a group of them is called, and why
 */
function card(place, group, error, where, { label: groupLabel, count = 1, reason } = {}) {
  const operation = operationAt(place);
  const name = operation && count === 1 ? operation.label : groupLabel ?? place.name;
  const click = () => { if (operation) open(operation.id); };
  return element("button", { type: "button", class: "culprit", disabled: !operation, click },
    mark(group), element("b", {}, ...breakable(name)),
    span(`number ${group}`, error), span(""), span("sub", where), ...(reason ? [span(""), span("sub reason", say(reason))] : []));
}

function evidence() {
  const { confidence, evidence: found, where } = sections.answer;
  if (!found.length && !where) return [];
  return [
    title(joined("Evidence", confidence)),
    found.length ? items(found) : null,
    where ? element("p", { class: "dim" }, say("at {}", where)) : null,
  ];
}

function firstDifference() {
  const first = summary.first_difference;
  if (!first) return [];
  const group = first.origin ?? groupOf(first.status);
  const where = joined(say(first.status), say(first.origin ?? ""), first.module || say("outside of modules"), say(first.source ?? ""),
    severalRuns ? placeName(first.step, String(first.rank)) : "");
  return [
    title("First difference in the order of execution"),
    card(first, group, digits(number(first.error)), where),
    first.reason ? element("p", { class: `why ${first.origin ?? ""}` }, say(first.reason)) : null,
  ];
}

function culprits() {
  if (!countDifferent(summary.counts)) return [];
  /** @type {any[]} */
  const found = sections.answer.groups;
  if (!found.length) {
    const text = say("No operation introduces a difference by itself.");
    return [title("Culprits"), element("p", { class: "dim" }, text)];
  }
  const shown = found.slice(0, 12).map(culpritCard), rest = found.slice(12).map(culpritCard);
  const total = summary.introduced_total;
  const count = total > found.length ? say("{}, {} in all", grouped(found.length), plural(total, "value")) : grouped(found.length);
  return [
    title(say("Culprits, best first: {}", count)),
    items(shown, "culprits"),
    rest.length ? folded("culprits", `${rest.length} more`, items(rest, "culprits")) : null,
  ];
}

/** @param {any} group */
function culpritCard(group) {
  const several = say("in {} of {} steps and ranks", group.places, summary.comparisons.length);
  const seen = group.places > 1 ? several : placeName(group.step, group.rank);
  const where = joined(say(group.kind.replace("_", " ")), say(group.status), group.module || say("outside of modules"),
    say(group.source ?? ""), severalRuns ? seen : "");
  return card(group, "introduced", group.error, where, group);
}

const histogramOrder = ["agrees", "inherited", "other", "input", "amplified", "introduced"];

// Bars by half decades, on a square root scale: rare large errors matter more than many small ones.
function distribution() {
  if (!sections.histogram) return [];
  /** @type {{from: number, per_decade: number, counts: Record<string, number[]>}} */
  const { from, per_decade: perDecade, counts } = sections.histogram;
  const groups = histogramOrder.filter((name) => counts[name]);
  if (!groups.length) return [];
  const sums = counts[groups[0]].map((_, bin) => groups.reduce((sum, name) => sum + counts[name][bin], 0));
  const start = Math.floor(sums.findIndex(Boolean) / perDecade) * perDecade;
  const end = Math.ceil((sums.findLastIndex(Boolean) + 1) / perDecade) * perDecade;
  const size = { width: 520, height: 130, side: 6, bottom: 18, top: 16 };
  const step = (size.width - 2 * size.side) / (end - start);
  const most = Math.max(...sums), floor = size.height - size.bottom;
  const tall = (/** @type {number} */ count) => (floor - size.top) * Math.sqrt(count / most);
  const svg = shape("svg", {
    class: "histogram", viewBox: `0 0 ${size.width} ${size.height}`, role: "img",
    "aria-label": say("How many values have which relative error"),
  });
  for (let bin = start; bin < end; bin += 1) {
    const x = size.side + (bin - start) * step;
    const [low, high] = [bin, bin + 1].map((edge) => digits(10 ** (from + edge / perDecade)));
    let below = 0;
    for (const name of groups.filter((each) => counts[each][bin])) {
      const count = counts[name][bin], top = tall(below + count);
      const bar = shape("rect", {
        x: x + 1, y: floor - top, width: Math.max(step - 2, 1),
        height: Math.max(top - tall(below), 1), fill: `var(--${name})`,
      });
      const what = say(name === "agrees" ? "that agree" : name);
      bar.append(shape("title", {}, say("{} {}, error {} to {}", plural(count, "value"), what, low, high)));
      svg.append(bar);
      below += count;
    }
    if (sums[bin] === most) svg.append(label(x + step / 2, size.top - 5, grouped(most)));
  }
  svg.append(shape("line", { x1: size.side, x2: size.width - size.side, y1: floor + 0.5, y2: floor + 0.5 }));
  const every = Math.ceil((end - start) / perDecade / 9) * perDecade;
  for (let bin = start; bin <= end; bin += every) {
    const x = Math.min(Math.max(size.side + (bin - start) * step, 14), size.width - 16);
    svg.append(label(x, size.height - 4, `1e${from + bin / perDecade}`));
  }
  return [title("How large the relative errors are (values, square root scale)"), svg];
}

/** @param {number} x @param {number} y @param {string} text */
function label(x, y, text) { return shape("text", { x, y, "text-anchor": "middle" }, text); }

function comparisonTable() {
  if (!severalRuns) return [];
  const rows = summary.comparisons.map((/** @type {any} */ each) => {
    const differ = countDifferent(each.counts);
    const total = /** @type {number[]} */ (Object.values(each.counts)).reduce((sum, count) => sum + count, 0);
    const pick = () => change({ run: `${each.step}/${each.rank}` });
    return element("tr", {},
      element("td", {}, link(placeName(each.step, String(each.rank)), pick)),
      element("td", { class: "right" }, say("{} of {}", grouped(differ), grouped(total))),
      element("td", { class: "mono" }, each.first_difference?.name ?? "–"));
  });
  return [title("Steps and ranks"), table(["", "|differ", "first difference"], rows)];
}

// A few of the values that could not be read, and why: often one file or folder explains all of them.
function unread() {
  const count = summary.counts.unread ?? 0;
  if (!count) return [];
  const few = unreadValues().slice(0, 5).map(({ operation: { id, name }, row }) => {
    const { slot, reason } = readValue(row);
    const show = link(`${name}.${slot}`, () => open(id, { part: slot }), { class: "link mono" });
    return span("", show, span("dim", ` ${say(reason ?? "")}`));
  });
  const showAll = () => change({ ...noFilters, status: "unread" });
  return [title(say("Could not be read: {}", plural(count, "value"))), items(few), link("show all of them", showAll)];
}

function unreadValues() {
  const status = column("values", "status");
  return operations.flatMap((operation) => Array.from({ length: operation.rows }, (_, place) => operation.first + place)
    .filter((row) => status(row) === "unread").map((row) => ({ operation, row })));
}

function unmatched() {
  const parts = [];
  for (const [word, side] of [["added", "target"], ["missing", "reference"]]) {
    const count = summary.unmatched[side];
    /** @type {string[]} */
    const names = summary.unmatched.operations[word] ?? [];
    if (!count) continue;
    const more = count > names.length ? say(", the first {}", names.length) : "";
    const unique = [...new Set(names)].map((name) => span("mono", ...breakable(name)));
    const heading = say(side === "target" ? "{} only in the target{}" : "{} only in the reference{}", plural(count, "operation"), more);
    parts.push(folded(word, heading, items(unique), unique.length <= 6));
  }
  return parts.length ? [title("Without a partner"), ...parts] : [];
}

function pairing() {
  const guessed = operations.filter((each) => each.match !== "exact" && each.match !== "unmatched");
  if (!guessed.length) return [];
  guessed.sort((left, right) => left.confidence - right.confidence);
  const rows = guessed.slice(0, 12).map((each) => element("tr", {},
    element("td", { class: "right" }, digits(each.confidence)),
    element("td", {}, each.match),
    element("td", { class: "mono" }, link(each.name, () => open(each.id)))));
  const more = guessed.length > rows.length ? say(", the {} least certain", rows.length) : "";
  return [
    title(say("Paired by more than the name: {}{}", grouped(guessed.length), more)),
    table(["|confidence", "by", "operation"], rows),
  ];
}

function replicas() {
  const found = summary.replicas;
  if (!found) return [];
  if (!found.length) return [title("Replicas"), element("p", {}, say("Ranks that should agree do."))];
  const shown = found.slice(0, 50).map((/** @type {any} */ each) => {
    const error = each.error === undefined || each.error === null ? each.status : digits(number(each.error));
    const name = span("mono", ...breakable(String(each.row ?? each.name ?? "")));
    return span("", name, " ", span("dim", joined(error, say(each.reason ?? ""), say(each.source ?? ""))));
  });
  const more = found.length > shown.length ? say(", the first {}", shown.length) : "";
  return [title(say("Ranks that should agree differ: {}{}", plural(found.length, "value"), more)), items(shown)];
}

function notes() {
  return summary.notes.length ? [title("Notes"), items(summary.notes)] : [];
}

// Groups of differences that no origin tells of; the timeline has their names as well.
const withoutOrigin = [
  ["other", "without consequence", "differs on the way to results that agree"],
  ["unmatched", "no partner", "only one side has it"],
];

function about() {
  const size = say("{} in {}", plural(summary.rows, "value"), plural(summary.operations, "operation"));
  const read = summary.bytes_read ? say(", {} read", bytes(summary.bytes_read)) : "";
  const groups = [...Object.entries(words.origins).map(([word, meaning]) => [word, word, meaning]), ...withoutOrigin];
  /** @type {[Child, Child][]} */
  const origins = groups.map(([group, word, meaning]) => [span(group, mark(group), ` ${say(word)}`), say(meaning)]);
  /** @type {[Child, Child][]} */
  const statuses = Object.entries(words.statuses).map(([word, meaning]) => [span(word, say(word)), say(meaning)]);
  return [
    title("About this comparison"),
    facts([
      ["target", span("mono", summary.target)],
      ["reference", span("mono", summary.reference)],
      ["judged by", say(words.modes[summary.mode] ?? summary.mode)],
      ["size", size],
      ["took", `${digits(summary.elapsed_s)} s${read}`],
      ["written by", `msprobe ${summary.msprobe_version}`],
    ]),
    folded("words", say("what the words mean"), element("div", {}, facts(origins), element("hr", {}), facts(statuses))),
  ];
}
