// SPDX-License-Identifier: Apache-2.0
// One operation in full: why it is shown, its values, both sides of the one that is picked.

import { nextIntroduced, operations, pickedValue, readValue, selected, severalRuns } from "../data/comparison.js";
import { picturesOf } from "../data/pictures.js";
import { placeName, words } from "../data/words.js";
import { head, open } from "../shared/detail.js";
import {
  breakable, element, facts, link, pill, replace, span, table, title,
} from "../shared/dom.js";
import { folded } from "../shared/folds.js";
import { digits, exact, grouped, percent } from "../shared/format.js";
import { say } from "../shared/language.js";
import { sections } from "../shared/sections.js";
import { change } from "../shared/store.js";

/** @typedef {import("../data/comparison.js").Operation} Operation */
/** @typedef {Record<string, any>} Value */

/** @type {HTMLElement} */
let pane;

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "operation", title: "Operation", place: "detail", needs: ["operations", "values"], uses: [],
  shows: () => selected() !== undefined,

  start(made) { pane = made; },

  render() {
    const operation = selected();
    if (!operation) return;
    const row = pickedValue(operation), value = readValue(row);
    const meaning = value.origin ? words.origins[value.origin] : words.statuses[value.status];
    const hadFocus = document.activeElement?.closest("tr.pick");
    replace(pane, ...head(operation.name, ...neighbours(operation)),
      element("div", {}, pill(value.status, words.statuses[value.status]),
        value.origin ? pill(value.origin, words.origins[value.origin]) : null, span("dim", say(meaning))),
      value.reason ? element("p", { class: `why ${value.origin ?? ""}` }, say(value.reason)) : null,
      title("Where"), whereFacts(operation, value), stackOf(operation),
      title(say("Values of this operation ({})", operation.rows)), valueTable(operation, row),
      ...valueParts(operation, value));
    if (hadFocus) /** @type {HTMLElement} */ (pane.querySelector("tr.picked")).focus();
  },

  keys: {
    "n": ["next introduced difference", () => openIntroduced(1)],
    "p": ["previous introduced difference", () => openIntroduced(-1)],
  },
};

/** @param {number} by */
function openIntroduced(by) {
  const operation = nextIntroduced(by);
  if (operation) open(operation.id);
}

/** Returns links to what ran before and after, and to the next culprit. @param {Operation} operation */
function neighbours(operation) {
  const other = (/** @type {number} */ by) => {
    const found = operations[operation.place + by];
    return found && found.step === operation.step && found.rank === operation.rank ? found : null;
  };
  const to = (/** @type {string} */ text, /** @type {Operation | null} */ found, meaning = found?.name) => (
    found && link(text, () => open(found.id), { title: meaning }));
  const inGraph = sections.graph ? link(say("in the graph"), () => change({ view: "graph", pane: "main" })) : null;
  return [inGraph, to("ran before", other(-1)), to("ran after", other(1)), to("next introduced", nextIntroduced(1), "n")];
}

/** @param {Operation} operation @param {Value} value */
function whereFacts(operation, value) {
  const pick = () => change({ module: operation.module });
  const module = operation.module && link(operation.module, pick, { title: say("show this module only") });
  let pairing = say("{}, confidence {}", say(operation.match), digits(operation.confidence));
  if (operation.match === "exact") pairing = "";
  if (operation.match === "unmatched") pairing = say("no partner");
  return facts([
    ["module", module || say("outside of modules")],
    ["source", operation.source && span("mono", say(operation.source))],
    ["kind", say(value.kind.replace("_", " "))],
    ["run", severalRuns ? placeName(operation.step, operation.rank) : ""],
    ["order", say("{} in the execution", grouped(operation.order))],
    ["paired by", pairing],
    ["target's name", value.target_name],
    ["reference's name", value.reference_name],
  ]);
}

// The frames of the reader's own code stand out from those of libraries.
/** @param {Operation} operation */
function stackOf(operation) {
  /** @type {[text: string, isOwn: boolean][]} */
  const stack = operation.culprit?.stack ?? [];
  if (stack.length < 2) return null;
  const frames = stack.map(([text, isOwn]) => element("li", { class: isOwn ? "own" : "dim" }, text));
  return folded("stack", say("call stack, {} frames", stack.length),
    element("ol", { class: "plain-list mono" }, ...frames));
}

// Type and shape of a tensor, the value of anything else; of both sides where they are different.
/** @param {Value} value */
function kindOfValue(value) {
  const isTensor = (value.target_shape ?? value.reference_shape ?? null) !== null;
  const side = (/** @type {string} */ name) => {
    if (!isTensor) return value[`${name}_value`] ?? "";
    return (value[`${name}_dtype`] ?? "") + (value[`${name}_shape`] ?? "").replaceAll(" ", "");
  };
  const [target, reference] = [side("target"), side("reference")];
  const isOne = !target || !reference || target === reference;
  return isOne ? target || reference : say("{}, reference {}", target, reference);
}

/** @param {Operation} operation @param {number} picked */
function valueTable(operation, picked) {
  const rows = Array.from({ length: operation.rows }, (_, place) => (
    valueRow(readValue(operation.first + place), operation.first + place === picked)));
  const made = table(["value", "type", "status", "|error"], rows);
  made.firstChild.classList.add("values");
  return made;
}

/** @param {Value} value @param {boolean} isPicked */
function valueRow(value, isPicked) {
  const pick = () => change({ part: value.slot });
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pick();
  };
  const attributes = { tabindex: "0", "aria-label": value.slot, "aria-current": String(isPicked), click: pick, keydown: onKey };
  return element("tr", { class: `pick ${isPicked ? "picked" : ""}`, ...attributes },
    element("td", { class: "mono" }, value.slot),
    element("td", { class: "mono dim" }, ...breakable(kindOfValue(value))),
    element("td", { class: value.origin ?? value.status }, [value.status, value.origin].filter(Boolean).map((word) => say(word ?? "")).join(", ")),
    element("td", { class: "right" }, digits(value.error)));
}

/** @param {Operation} operation @param {Value} value */
function valueParts(operation, value) {
  const name = () => span("mono", value.slot);
  const errors = errorFacts(value), largest = largestErrors(value);
  const by = value.count ? say(", element by element") : "";
  return [
    ...(errors.length ? [title("How ", name(), say(" differs") + by), facts(errors)] : []),
    ...(largest.length ? [title("Largest errors of ", name()), facts(largest)] : []),
    ...picturesOf(operation.id, value.slot),
    title("Both sides of ", name()), sidesTable(operation, value),
  ];
}

/** @param {Value} value @returns {[string, string][]} */
function errorFacts(value) {
  const has = (/** @type {string} */ key) => value[key] !== null && value[key] !== undefined;
  /** @param {string} key @param {(value: any) => string} format */
  const shown = (key, format = digits) => (has(key) ? format(value[key]) : "");
  const counted = (/** @type {string} */ key) => {
    if (!has(key) || !value.count) return "";
    const of = say("of {}", grouped(value.count));
    const count = value[key];
    return count ? `${grouped(count)} ${of} (${percent(count, value.count)})` : `${say("none")} ${of}`;
  };
  const share = (/** @type {number} */ ratio) => say("{} of elements", percent(ratio, 1));
  /** @type {[string, string][]} */
  const all = [
    ["relative error", shown("error")],
    ["out of tolerance", counted("mismatches")],
    ["not the same", counted("unequal")],
    ["mean abs error", shown("mean_abs_err")],
    ["99.9 % below", shown("p999_abs_err")],
    ["RMSE", shown("rmse")],
    ["relative L2", shown("relative_l2")],
    ["cosine", shown("cosine", (cosine) => String(Number(cosine.toPrecision(7))))],
    ["largest ULP distance", shown("max_ulp")],
    ["signs flipped", shown("sign_flips", grouped)],
    ["rel. error < 0.1 %", shown("ratio_1e3", share)],
    ["rel. error < 0.5 %", shown("ratio_5e3", share)],
    ["first NaN/Inf apart", shown("first_nonfinite", (index) => say("at {}", index))],
  ];
  return all.filter(([, text]) => text !== "");
}

/** @param {Value} value @returns {[string, Node][]} */
function largestErrors(value) {
  const found = [["abs. error", "max_abs"], ["rel. error", "max_rel"]];
  return found.filter(([, key]) => value[`${key}_err`] > 0).map(([name, key]) => {
    const index = value[`${key}_index`];
    const both = say("{}, reference {}", exact(value[`${key}_target`]), exact(value[`${key}_reference`]));
    const error = element("b", { class: "number" }, digits(value[`${key}_err`]));
    return [name, span("", error, index ? span("mono", ` ${say("at {}", index)}`) : "", element("br"), span("dim", both))];
  });
}

const sides = [
  ["type", "dtype"], ["shape", "shape"], ["value", "value"], ["max", "max"], ["min", "min"],
  ["mean", "mean"], ["norm", "norm"], ["NaN", "nan"], ["Inf", "inf"],
  ["requires grad", "requires_grad"], ["checksum", "md5"], ["file", "file"],
];

/** @param {Operation} operation @param {Value} value */
function sidesTable(operation, value) {
  // Names of files are kept without what the value's own name says.
  const whole = (/** @type {string | null} */ file) => (file?.startsWith(".") ? `${operation.name}.${value.slot}${file}` : file);
  /** @param {string} side @param {string} key */
  const read = (side, key) => (key === "file" ? whole(value[`${side}_file`]) : value[`${side}_${key}`]) ?? null;
  const rows = sides
    .map(([name, key]) => ({ name, target: read("target", key), reference: read("reference", key), canDiffer: key !== "file" }))
    .filter(({ target, reference }) => target !== null || reference !== null)
    .map(sidesRow);
  if (!rows.length) return element("p", { class: "dim" }, say("nothing is known of it"));
  return table(["", "|target", "|reference", "|difference"], rows);
}

/** @param {{name: string, target: any, reference: any, canDiffer: boolean}} both */
function sidesRow({ name, target, reference, canDiffer }) {
  const kind = typeof (target ?? reference);
  const isApart = canDiffer && !Object.is(target, reference);
  /** @param {any} value @param {string} mood */
  const side = (value, mood) => element("td", {
    class: `right ${kind === "number" ? "" : "mono"} ${mood}`, title: kind === "number" ? exact(value) : null,
  }, kind === "string" ? value ?? "–" : digits(value));
  const isKnown = target !== null && reference !== null;
  const distance = kind === "number" && isApart && isKnown ? digits(target - reference) : "";
  return element("tr", {}, element("td", { class: "dim" }, say(name)), side(target, isApart ? "apart" : ""),
    side(reference, ""), element("td", { class: "right dim" }, distance));
}
