// SPDX-License-Identifier: Apache-2.0
// Errors along the execution, on a logarithmic scale. What has no number is in a lane on top,
// what is equal in one at the bottom.

import { say } from "../shared/language.js";
import {
  errorShare, filterNames, inRun, operations, scale as errorScale, selected, severalRuns, shownOperations, summary,
  valueError,
} from "../data/comparison.js";
import { entryId, lanes } from "../data/lanes.js";
import { agrees, mark, placeName, words } from "../data/words.js";
import { open } from "../shared/detail.js";
import { element, joined, replace, span } from "../shared/dom.js";
import { digits, plural } from "../shared/format.js";
import { number, sections } from "../shared/sections.js";
import { state } from "../shared/store.js";
import { colour, onTheme } from "../shared/theme.js";

/** @typedef {import("../data/comparison.js").Operation} Operation */
/** @typedef {{begin: number, end: number, name: string}} Span */
/** @typedef {import("../data/lanes.js").Lanes} Lanes */
/** @typedef {ReturnType<typeof scales>} Scale */
/** @typedef {CanvasRenderingContext2D} Pen */

const margins = { left: 76, right: 14, top: 10, bottom: 20, lane: 17 };
// The radius of each group's points; what says more comes later, on top.
const sizes = {
  agrees: 1.6, inherited: 2.1, unread: 3, unmatched: 3, other: 3, nonfinite: 3.4, input: 3.6, amplified: 4, introduced: 5.5,
};
/** @typedef {keyof typeof sizes} Group */
const layers = /** @type {Group[]} */ (Object.keys(sizes));

const labelHeight = 12;
const canvas = element("canvas", { id: "timeline", role: "img" });
const laneBox = element("div", { id: "lanes" });
const tip = element("div", { id: "tip", class: "tip", hidden: true });
/** @type {{operation: Operation, x: number, y: number}[]} */
let points = [];
let isPlaced = false; // has a size: nothing is drawn before

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "errors", title: "Errors along the execution", place: "strip",
  needs: ["operations", "values", "spans", "profile"], uses: [...filterNames, "at"],

  start(pane) {
    const count = Object.values(summary.counts).reduce((sum, each) => sum + each, 0);
    canvas.setAttribute("aria-label",
      say("Relative error of {} along the execution; the list holds the same.", plural(count, "value")));
    canvas.addEventListener("mousemove", showTip);
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const point = nearest(event);
      if (point) open(point.operation.id);
    });
    replace(pane, canvas, lanes.length ? laneBox : null, legend(), tip);
    onTheme(draw);
    new ResizeObserver(() => { isPlaced = true; draw(); }).observe(canvas);
  },

  render() { if (isPlaced) draw(); },
};

function legend() {
  const present = new Set(operations.map((each) => each.group));
  /** @type {Record<string, string>} */
  const names = {
    agrees: "agrees", other: "without consequence", unmatched: "no partner", nonfinite: "NaN or Inf", unread: "could not be read",
  };
  const entries = layers.filter((name) => present.has(name)).reverse().map((group) => (
    element("span", { title: say(words.origins[group] ?? "") }, mark(group), ` ${say(names[group] ?? group)}`)));
  /** @param {string} name @param {string} text @param {string} meaning */
  const band = (name, text, meaning) => element("span", { title: meaning && say(meaning) }, element("i", { class: `band ${name}` }), ` ${say(text)}`);
  const bands = [];
  if (backwardBegins().size) bands.push(band("shade", "backward pass", "where gradients flow"));
  if (severalRuns) bands.push(band("edge", "step or rank", "steps and ranks are one after the other"));
  if (sections.profile.length) bands.push(band("skyline", "largest error", "of all operations, those that the page leaves out among them"));
  return element("div", { class: "legend" }, ...entries, ...bands);
}

// Steps and ranks are one after the other, each as wide as it is long.
function readSpans() {
  /** @type {Map<string, Span>} */
  const spans = new Map();
  let begin = 0;
  for (const [step, rank, last] of sections.spans) {
    const key = `${step}/${rank}`;
    if (state.run && key !== state.run) continue;
    spans.set(key, { begin, end: begin + last + 1, name: placeName(step, rank) });
    begin += last + 1 + Math.ceil((last + 1) / 60);
  }
  return { spans, end: Math.max(begin, 2) };
}

/** @param {number} width @param {number} height */
function scales(width, height) {
  const inner = width - margins.left - margins.right;
  const top = margins.top + margins.lane, bottom = height - margins.bottom - margins.lane;
  const { spans, end } = readSpans();
  const at = (/** @type {number} */ position) => margins.left + 6 + (inner - 12) * position / (end - 1);
  return {
    spans, at,
    x: (/** @type {Operation} */ place) => at((spans.get(`${place.step}/${place.rank}`)?.begin ?? 0) + place.order),
    y: (/** @type {number | null} */ error) => {
      if (error === null || Number.isNaN(error) || error === Infinity) return margins.top + 4;
      if (error <= 0) return height - margins.bottom - 4;
      return bottom - errorShare(error) * (bottom - top);
    },
    top, bottom,
  };
}

/** Returns the error of an operation: that of its worst value, or of what came out. @param {Operation} operation */
function errorOf(operation) {
  if (!agrees(operation.status)) return valueError(operation.worst);
  return operation.errorOut ?? operation.errorIn ?? 0;
}

function draw() {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!width) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const scale = scales(width, height);
  drawGround(pen, scale, width, height);
  drawAxes(pen, scale, width);
  drawProfile(pen, scale);
  drawPoints(pen, scale);
  placeLanes(scale);
}

// Where there are more marks, those of what is the same on both sides are left out.
const mostMarks = 1500;
const laneKinds = /** @type {const} */ ([["data", "data"], ["events", "optimizer"]]);

// Below the plot: batches where their step begins, and events around the optimizer where it ends.
/** @param {Scale} scale */
function placeLanes(scale) {
  const kinds = laneKinds.filter(([kind]) => lanes.some((lane) => lane[kind].length));
  replace(laneBox, ...kinds.map(([kind, name]) => element("div", { class: "lane", role: "group", "aria-label": say(name) },
    span("lane-name", say(name)), ...lanes.flatMap((lane) => marksOf(lane, kind, scale)))));
}

const isCrowded = lanes.reduce((sum, { data, events }) => sum + data.length + events.length, 0) > mostMarks;

// A difference that the verdict does not name comes from elsewhere, or does no harm.
/** @param {Lanes} lane @param {"data" | "events"} kind */
function isBlamed({ step, rank }, kind) {
  const { where } = summary.verdict ?? {};
  const phases = kind === "data" ? ["data"] : ["clip", "optimizer"];
  return Boolean(where) && where.step === step && String(where.rank) === rank && phases.includes(where.phase);
}

/** @param {Lanes} lane @param {"data" | "events"} kind @param {Scale} scale */
function marksOf(lane, kind, scale) {
  const found = scale.spans.get(`${lane.step}/${lane.rank}`);
  if (!found) return [];
  const left = scale.at(found.begin), right = scale.at(found.end);
  const entries = lane[kind], gap = Math.min(14, (right - left) / Math.max(entries.length, 1));
  return entries.flatMap((entry, place) => {
    if (isCrowded && entry.same) return [];
    const x = kind === "data" ? left + gap * place : right - gap * (entries.length - place);
    const id = entryId(lane, kind, place), words = `${entry.name}: ${say(entry.same ? "the same" : "differs")}`;
    const mood = entry.same ? "agrees" : isBlamed(lane, kind) ? "apart blamed" : "apart";
    return element("button", {
      type: "button", class: `lane-mark ${mood} ${state.at === id ? "picked" : ""}`, title: words,
      "aria-label": `${words}, ${placeName(lane.step, lane.rank)}`, style: `left:${x.toFixed(1)}px`, click: () => open(id),
    }, entry.same ? "○" : mood === "apart" ? "●" : "◆");
  });
}

// A shade where gradients flow; lines between steps and ranks.
/** @param {Pen} pen @param {Scale} scale @param {number} width @param {number} height */
function drawGround(pen, scale, width, height) {
  const tall = height - margins.bottom - 4;
  const begins = backwardBegins(), names = [], backwards = [];
  for (const [key, { begin, end, name }] of scale.spans) {
    const first = begins.get(key);
    const left = scale.at(begin), right = scale.at(end);
    if (first) {
      const start = scale.x(first);
      pen.fillStyle = colour("shade");
      pen.fillRect(start - 3, 4, right - start + 3, tall);
      backwards.push({ text: say("backward"), left: start + 2, room: right - start });
    }
    if (scale.spans.size > 1) names.push({ text: name, left, room: right - left });
    if (begin) {
      pen.fillStyle = colour("line");
      pen.fillRect(Math.round(left) - 5, 4, 1, tall);
    }
  }
  const axis = { text: say("relative error along the execution"), left: margins.left, room: width };
  writeLabels(pen, [...names, ...backwards, ...(names.length ? [] : [axis])], height - 6, width - margins.right);
}

/**
 * Writes those labels below the plot that fit into their room and touch no other; the first ones come first.
 * @param {Pen} pen
 * @param {{text: string, left: number, room: number}[]} labels
 * @param {number} y
 * @param {number} end of the plot
 */
function writeLabels(pen, labels, y, end) {
  /** @type {[number, number][]} */
  const taken = [];
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.fillStyle = colour("dim");
  for (const { text, left, room } of labels) {
    const right = left + pen.measureText(text).width + 8;
    if (right - left > room || right > end || taken.some(([from, to]) => left < to && right > from)) continue;
    taken.push([left, right]);
    pen.fillText(text, left, y);
  }
}

/** Returns the first backward operation of each step and rank. */
function backwardBegins() {
  /** @type {Map<string, Operation>} */
  const found = new Map();
  for (const operation of operations) {
    const key = `${operation.step}/${operation.rank}`;
    if (!found.has(key) && /\.backward(\.|$)/.test(operation.name)) found.set(key, operation);
  }
  return found;
}

/** @param {Pen} pen @param {Scale} scale @param {number} width */
function drawAxes(pen, scale, width) {
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  pen.lineWidth = 1;
  const space = (scale.bottom - scale.top) / (errorScale.high - errorScale.low);
  const every = Math.max(1, Math.ceil(20 / space));
  /** @type {[number | null, string][]} */
  const lines = [[null, say("no number")], [0, say("equal")]];
  /** @type {number[]} */
  const labelled = [];
  for (let decade = errorScale.low; decade <= errorScale.high; decade += every) lines.push([10 ** decade, `1e${decade}`]);
  for (const [error, label] of lines) {
    const y = Math.round(scale.y(error)) + 0.5;
    pen.strokeStyle = colour("line");
    pen.beginPath();
    pen.moveTo(margins.left, y);
    pen.lineTo(width - margins.right, y);
    pen.stroke();
    if (labelled.some((other) => Math.abs(other - y) < labelHeight)) continue;
    labelled.push(y);
    pen.fillStyle = colour("dim");
    pen.fillText(label, margins.left - 8, y);
  }
  pen.textBaseline = "alphabetic";
}

// Where the page does not hold all operations, their largest errors still show as a skyline.
/** @param {Pen} pen @param {Scale} scale */
function drawProfile(pen, scale) {
  const floor = scale.y(0);
  pen.fillStyle = colour("inherited");
  pen.globalAlpha = 0.22;
  /** @type {[number, string, number, any][]} */
  const profile = sections.profile;
  profile.forEach(([step, rank, order, error], place) => {
    const run = scale.spans.get(`${step}/${rank}`);
    if (!run) return;
    const next = profile[place + 1];
    const end = next && next[0] === step && next[1] === rank ? next[2] : run.end - run.begin;
    const left = scale.at(run.begin + order), y = scale.y(number(error));
    pen.fillRect(left, y, scale.at(run.begin + end) - left, floor - y);
  });
  pen.globalAlpha = 1;
}

/** @param {Pen} pen @param {Scale} scale */
function drawPoints(pen, scale) {
  const visible = new Set(shownOperations());
  const layer = new Map(layers.map((name, place) => [/** @type {string} */ (name), place]));
  const colours = new Map(layers.map((name) => [/** @type {string} */ (name), colour(name)]));
  points = operations.filter(inRun)
    .sort((left, right) => (layer.get(left.group) ?? 0) - (layer.get(right.group) ?? 0))
    .map((operation) => ({ operation, x: scale.x(operation), y: scale.y(errorOf(operation)) }));
  for (const { operation, x, y } of points) {
    const group = /** @type {Group} */ (operation.group);
    const isFaint = !visible.has(operation) && group !== "agrees";
    pen.globalAlpha = isFaint ? 0.2 : group === "agrees" ? 0.55 : group === "inherited" ? 0.75 : 1;
    pen.fillStyle = colours.get(group) ?? "";
    drawShape(pen, group, x, y, sizes[group]);
  }
  pen.globalAlpha = 1;
  drawRing(pen, scale);
}

/** @param {Pen} pen @param {Group} group @param {number} x @param {number} y @param {number} size */
function drawShape(pen, group, x, y, size) {
  pen.beginPath();
  if (group === "introduced") {
    pen.moveTo(x, y - size); pen.lineTo(x + size, y); pen.lineTo(x, y + size); pen.lineTo(x - size, y);
  } else if (group === "amplified") {
    pen.moveTo(x, y - size); pen.lineTo(x + size, y + size); pen.lineTo(x - size, y + size);
  } else if (group === "input") {
    pen.moveTo(x - size, y - size); pen.lineTo(x + size, y); pen.lineTo(x - size, y + size);
  } else if (group === "other" || group === "unmatched") {
    pen.rect(x - size / 1.3, y - size / 1.3, size * 1.5, size * 1.5);
  } else {
    pen.arc(x, y, size, 0, 7);
  }
  pen.closePath();
  pen.fill();
  if (group === "introduced") { pen.strokeStyle = colour("panel"); pen.lineWidth = 1; pen.stroke(); }
}

// A ring around the selected operation.
/** @param {Pen} pen @param {Scale} scale */
function drawRing(pen, scale) {
  const operation = selected();
  if (!operation || !inRun(operation)) return;
  pen.strokeStyle = colour("text");
  pen.lineWidth = 1.6;
  pen.beginPath();
  pen.arc(scale.x(operation), scale.y(errorOf(operation)), 8.5, 0, 7);
  pen.stroke();
}

/** @param {MouseEvent} event */
function nearest(event) {
  const box = canvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  let found = null, best = 196;
  for (const point of points) {
    // Later points lie on top, and those that say more draw the pointer from farther away.
    const reach = point.operation.group === "introduced" ? 0.4 : 1;
    const distance = ((point.x - x) ** 2 + (point.y - y) ** 2) * reach;
    if (distance <= best) { best = distance; found = point; }
  }
  return found;
}

/** @param {MouseEvent} event */
function showTip(event) {
  const point = nearest(event);
  canvas.style.cursor = point ? "pointer" : "default";
  tip.hidden = !point;
  if (!point) return;
  const { operation } = point;
  const where = joined(severalRuns ? placeName(operation.step, operation.rank) : "",
    say(operation.kind.replace("_", " ")), operation.module, say(operation.origin ?? operation.status));
  const came = operation.unmeasuredIn ?? digits(operation.errorIn);
  const left = operation.unmeasuredOut ?? digits(operation.errorOut);
  replace(tip,
    element("div", {}, mark(operation.group), ` ${operation.label}`),
    element("div", { class: "dim" }, where),
    element("div", {}, say("in {}  →  out {}", came, left)));
  tip.style.left = `${Math.min(point.x + 12, canvas.clientWidth - tip.offsetWidth - 6)}px`;
  tip.style.top = `${Math.max(point.y - tip.offsetHeight - 10, 4)}px`;
}
