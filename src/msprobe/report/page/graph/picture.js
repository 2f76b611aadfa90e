// SPDX-License-Identifier: Apache-2.0
// Draws the boxes and lines that a window shows.

import { errorOf, flag, hasReference, severityOf } from "../data/graph.js";
import { digits, grouped } from "../shared/format.js";
import { state } from "../shared/store.js";
import { look, themed } from "./colours.js";
import { headHeight, walk } from "./nest.js";
import { title } from "./scene.js";

/** @typedef {import("./nest.js").Placed} Placed */
/** @typedef {import("./pens.js").Pen} Pen */
/** @typedef {import("./scene.js").Scene} Scene */
/** @typedef {{k: number, x: number, y: number}} Camera scale, and where the corner of the picture is in the window */
/** @typedef {{x: number, y: number, w: number, h: number}} Place */

/**
 * @typedef {object} View
 * @property {Scene} scene
 * @property {import("./nest.js").Box} root
 * @property {Camera} camera
 * @property {number} width
 * @property {number} height
 * @property {number} selected a box, or −1
 * @property {number} partner
 * @property {Set<number>} hits boxes that are searched for
 * @property {Set<number>} lit boxes that are lit
 * @property {import("./nest.js").Line | null} hovered
 * @property {(box: number, place: Place) => Place} move of boxes while they are on their way
 * @property {boolean} isMoving
 */

const leastText = 5.5;

/** @param {Pen} pen @param {View} view */
export function drawPicture(pen, view) {
  const { camera: { k, x: left, y: top }, width, height } = view;
  const sight = { left: -left / k, top: -top / k, right: (width - left) / k, bottom: (height - top) / k };
  walk(view.root, sight, (placed) => drawBox(pen, view, placed));
}

/** @param {Pen} pen @param {View} view @param {Placed} placed @returns {boolean} whether to go on inside */
function drawBox(pen, view, placed) {
  const { camera: { k, x: left, y: top }, scene } = view;
  const number = placed.box.node;
  const place = view.move(number, { x: placed.x * k + left, y: placed.y * k + top, w: placed.w * k, h: placed.h * k });
  if (place.h < 1.5) return false;
  const item = scene.item(number), isOpen = placed.box.inside.length > 0;
  const goesOn = isOpen && place.w > 18;
  if (goesOn) drawOpen(pen, view, placed, place, item); else drawClosed(pen, view, place, item, number, k);
  drawRing(pen, view, number, place, k);
  if (goesOn && !view.isMoving) drawLines(pen, view, placed);
  return goesOn;
}

/** @param {Pen} pen @param {View} view @param {number} number @param {Place} place @param {number} k */
function drawRing(pen, view, number, { x, y, w, h }, k) {
  const width = Math.max(2, Math.min(3 * k, 4));
  const ring = (/** @type {string} */ stroke, /** @type {number} */ out, dashed = false) =>
    pen.box(x - out, y - out, w + 2 * out, h + 2 * out, { stroke, width, dashed, radius: 6 * k + out });
  if (view.lit.has(number)) ring(themed("link"), 1);
  if (view.hits.has(number)) ring(themed("amber"), 3);
  if (number === view.partner) ring(themed("steel"), 2, true);
  if (number === view.selected) ring(themed("text"), 2);
}

/** @param {Pen} pen @param {View} view @param {Placed} placed @param {Place} place @param {import("./scene.js").Item} item */
function drawOpen(pen, { camera: { k }, scene }, { depth, box }, { x, y, w, h }, item) {
  const seen = look(item.node, false);
  pen.box(x, y, w, h, { fill: depth % 2 ? themed("raised") : themed("panel"), radius: 7 * k });
  pen.box(x, y, w, h, { stroke: seen.fill || themed("line"), width: Math.max(1, Math.min(1.5 * k, 2)), radius: 7 * k, dashed: item.isGhost });
  const size = 12.5 * k;
  if (size < leastText) return;
  const middle = y + headHeight * k / 2;
  pen.text("▾", x + 9 * k, middle, { fill: themed("dim"), size });
  const label = box.node === 0 ? rootTitle(scene) : title(item.node);
  pen.text(label, x + 24 * k, middle, { fill: themed("text"), size, bold: true, mono: true, most: w - 34 * k });
  const used = (24 + label.length * 7.9 + 10) * k;
  const room = w - used - 8 * k;
  if (room > 30 * k && item.node.class && item.node.class !== label) {
    pen.text(item.node.class, x + used, middle, { fill: themed("dim"), size: 11 * k, most: room });
  }
}

/** @param {Scene} scene */
function rootTitle(scene) { return title(scene.graph.node(0)); }

/** @param {Pen} pen @param {View} view @param {Place} place @param {import("./scene.js").Item} item @param {number} number @param {number} k */
function drawClosed(pen, { scene }, place, item, number, k) {
  const { x, y, w, h } = place, { node, roll } = item;
  const isOpenable = scene.hasChildren(number), radius = (isOpenable ? 6 : 12) * k;
  const seen = look(node, true);
  if (item.roll) pen.box(x + 4 * k, y + 4 * k, w, h, { fill: themed("raised"), stroke: themed("line"), radius });
  pen.box(x, y, w, h, { fill: themed("panel"), radius });
  fillHalves(pen, place, item, seen.fill, radius);
  pen.box(x, y, w, h, { stroke: seen.fill || themed("line"), width: Math.max(1, Math.min(1.4 * k, 2)), radius, dashed: item.isGhost || node.kind >= 3 && node.kind !== 5 });
  if (11.5 * k < leastText) return;
  const hasMore = node.class || roll?.error || node.differs + node.unmatched, line = isOpenable && hasMore ? y + 14 * k : y + h / 2, start = isOpenable ? 22 : 10;
  if (isOpenable) pen.text("▸", x + 8 * k, line, { fill: themed("dim"), size: 12 * k });
  const right = figure(node), room = right && !isOpenable && w > 150 * k ? right.length * 6.5 * k + 8 * k : 0;
  const mark = seen.mark ? 14 : 0;
  if (mark) pen.text(seen.mark, x + start * k, line, { fill: seen.fill, size: 11 * k });
  pen.text(title(node), x + (start + mark) * k, line, {
    fill: themed("text"), size: 11.5 * k, bold: isOpenable, mono: true, most: w - (start + mark + 6) * k - room });
  if (room) pen.text(right, x + w - 8 * k, line, { fill: themed("dim"), size: 10 * k, right: true });
  if (isOpenable) drawUnder(pen, place, item, k, right);
}

// A node whose halves differ in colour shows both: forward on the left, backward on the right.
/** @param {Pen} pen @param {Place} place @param {import("./scene.js").Item} item @param {string} fill @param {number} radius */
function fillHalves(pen, { x, y, w, h }, { node }, fill, radius) {
  if (state.colour === "status" && state.half === "" && node.size === 1 && node.severity !== node.severity_backward && node.severity_backward > 0) {
    const forward = look({ ...node, severity_backward: 0, error_backward: null }, true).fill;
    const backward = look({ ...node, severity: 0, error: null }, true).fill;
    if (forward) pen.box(x, y, w, h, { fill: forward, share: .26, radius, to: .5 });
    if (backward) pen.box(x, y, w, h, { fill: backward, share: .26, radius, from: .5 });
  } else if (fill) pen.box(x, y, w, h, { fill, share: state.colour === "status" || state.colour === "overflow" ? .22 : .55, radius });
}

/** Returns the number on the right of a box. @param {import("../data/graph.js").GraphNode} node */
function figure(node) {
  if (state.colour === "norm") return node.norm === null ? "" : digits(node.norm);
  if (state.colour === "gradient") return node.grad_norm === null ? "" : digits(node.grad_norm);
  const error = errorOf(node);
  return error === null || !hasReference || !(error > 0) ? "" : digits(error);
}

/** @param {Pen} pen @param {Place} place @param {import("./scene.js").Item} item @param {number} k @param {string} right */
function drawUnder(pen, { x, y, w, h }, { node, roll }, k, right) {
  const line = y + 29 * k, bad = node.differs + node.unmatched;
  if (roll?.error) { drawSpark(pen, roll, x + 22 * k, y + 22 * k, w - 30 * k, 15 * k); return; }
  const counts = bad ? `${grouped(bad)}/${grouped(node.halves)}` : right;
  const isShort = !node.class || w < 60 * k;
  if (!isShort) pen.text(node.class, x + 22 * k, line, { fill: themed("dim"), size: 10.5 * k, most: w - 34 * k - counts.length * 6.2 * k });
  if (counts) pen.text(counts, x + w - 8 * k, line, { fill: themed("dim"), size: 10 * k, right: true });
  if (!bad || !node.halves) return;
  const wide = w - 16 * k, bar = y + h - 5 * k;
  const part = (/** @type {number} */ count) => Math.max(wide * count / node.halves, count ? 2 : 0);
  pen.box(x + 8 * k, bar, wide, 2.5 * k, { fill: themed("line"), radius: 1 });
  pen.box(x + 8 * k, bar, part(bad), 2.5 * k, { fill: themed("inherited"), radius: 1 });
  if (node.introduced) pen.box(x + 8 * k, bar, part(node.introduced), 2.5 * k, { fill: themed("introduced"), radius: 1 });
}

// The error of each member of a roll, on a logarithmic scale; higher is worse.
/** @param {Pen} pen @param {import("../data/graph.js").Roll} roll @param {number} x @param {number} y @param {number} w @param {number} h */
function drawSpark(pen, roll, x, y, w, h) {
  const values = (roll.error ?? []).map((value) => (typeof value === "string" ? Infinity : value));
  const step = w / values.length;
  values.forEach((value, place) => {
    const share = value === null || value <= 0 ? 0 : Math.min(Math.max((Math.log10(value) + 12) / 12, .08), 1);
    const fill = share === 0 ? themed("line") : (roll.worst?.[place] ?? 0) >= 6 ? themed("introduced") : themed("inherited");
    const high = Math.max(share * h, 1.5);
    pen.box(x + place * step, y + h - high, Math.max(step - 1, 1), high, { fill, radius: 0 });
  });
}

/** @param {Pen} pen @param {View} view @param {Placed} placed */
function drawLines(pen, view, placed) {
  const { camera: { k, x: left, y: top }, width, height, scene } = view;
  const isGradient = state.flow === "gradient";
  for (const { line, points } of placed.box.routes) {
    if (points.length < 2) continue;
    const way = points.map(({ x, y }) => ({ x: (placed.x + x) * k + left, y: (placed.y + y) * k + top }));
    if (isOutside(way, width, height)) continue;
    const edges = line.edges.map((place) => scene.edges[place]);
    const flows = edges.some((edge) => edge.gradient);
    if (isGradient && !flows) continue;
    const from = placed.box.inside[line.from]?.box.node ?? placed.box.node, to = placed.box.inside[line.to]?.box.node ?? placed.box.node;
    const isSelected = view.hovered === line || view.selected >= 0 && (from === view.selected || to === view.selected);
    const isLit = view.lit.has(from) && view.lit.has(to);
    const isInferred = edges.every((edge) => edge.how > 0 && edge.how < 4);
    pen.line(isGradient ? way.reverse() : way, {
      stroke: themed(isSelected ? "text" : isLit ? "link" : isGradient ? "violet" : "grey"), dashed: isInferred,
      width: (isSelected || isLit ? 2 : 1.1) * Math.min(Math.max(k, .5), 1.5), arrow: k > .35,
    });
  }
}

/** @param {import("./layout.js").Point[]} way @param {number} width @param {number} height */
function isOutside(way, width, height) {
  let left = Infinity, right = -Infinity, top = Infinity, bottom = -Infinity;
  for (const { x, y } of way) {
    left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y);
  }
  return right < 0 || bottom < 0 || left > width || top > height;
}

/** Returns what a box says to readers who hear the page. @param {import("./scene.js").Item} item */
export function spoken({ node, roll }) {
  const seen = look(node, true), error = errorOf(node);
  return [title(node), node.class === title(node) ? "" : node.class, roll ? "" : seen.words,
    error === null ? "" : digits(error), severityOf(node) ? node.status || node.status_backward : "",
    node.flags & flag.nonfinite ? "NaN, Inf" : ""].filter(Boolean).join(", ");
}
