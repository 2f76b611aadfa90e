// SPDX-License-Identifier: Apache-2.0
// Places of the boxes of one level: in layers along the data flow, or in rows where no flow is known.
// Everything is computed as if the flow went down, and turned at the end.

import { dagre } from "../vendor/dagre.js";

/** @typedef {{w: number, h: number}} Size */
/** @typedef {{x: number, y: number}} Point */
/** @typedef {[from: number, to: number]} Link places of boxes, in order of execution */
/** @typedef {"down" | "right"} Direction */

/**
 * @typedef {object} Level
 * @property {number} w
 * @property {number} h
 * @property {Point[]} places the left upper corner of each box
 * @property {Point[][]} routes the way of each link
 */

const gap = { across: 14, along: 26, row: 10 };
// A part of a level with more boxes is layered in linear time instead; dagre needs some 50 ms for this many.
const mostForDagre = 48;
const mostForDagreInLevel = 64;
const mostInRow = 12;
const mostKept = 4000;

/** @type {Map<string, Part>} */
const kept = new Map();

/**
 * A run of boxes between two that everything passes through. Centres, from that of the first box.
 * @typedef {{centres: Point[], routes: Point[][]}} Part
 */

/**
 * Returns the places of boxes that are given in order of execution.
 * @param {Size[]} sizes
 * @param {Link[]} links
 * @param {Direction} [direction] of the flow
 * @returns {Level}
 */
export function layLevel(sizes, links, direction = "down") {
  if (direction === "right") return turnedLevel(layLevel(sizes.map(({ w, h }) => ({ w: h, h: w })), links));
  if (!sizes.length) return { w: 0, h: 0, places: [], routes: [] };
  return links.length ? layParts(sizes, links) : layRows(sizes);
}

/** @param {Point} point */
const turned = ({ x, y }) => ({ x: y, y: x });

/** @param {Level} level @returns {Level} */
function turnedLevel({ w, h, places, routes }) {
  return { w: h, h: w, places: places.map(turned), routes: routes.map((route) => route.map(turned)) };
}

/** Has the engine compile the layout before a box is opened: the first time takes several times as long as the others. */
export function warmUp() {
  const sizes = Array.from({ length: 8 }, () => ({ w: 90, h: 26 })), chain = sizes.slice(1).map((_, box) => /** @type {Link} */ ([box, box + 1]));
  for (let round = 0; round < 12; round += 1) layByDagre(sizes, [...chain, [0, 7], [1, 4]]);
}

// Without any flow: rows in order of execution, about as wide as high.
/** @param {Size[]} sizes @returns {Level} */
function layRows(sizes) {
  const area = sizes.reduce((sum, { w, h }) => sum + (w + gap.row) * (h + gap.row), 0);
  const most = Math.max(Math.sqrt(1.5 * area), ...sizes.map(({ w }) => w));
  let x = 0, y = 0, high = 0, wide = 0;
  const places = sizes.map(({ w, h }) => {
    if (x > 0 && x + w > most) { x = 0; y += high + gap.row; high = 0; }
    const place = { x, y };
    x += w + gap.row;
    high = Math.max(high, h);
    wide = Math.max(wide, place.x + w);
    return place;
  });
  return { w: wide, h: y + high, places, routes: [] };
}

// Where no link passes over a box, the level is cut; its parts are one below the other.
/** @param {Size[]} sizes @param {Link[]} links @returns {Level} */
function layParts(sizes, links) {
  /** @type {Point[]} */
  const centres = sizes.map(() => ({ x: 0, y: 0 }));
  /** @type {Point[][]} */
  const routes = links.map(() => []);
  const budget = { left: mostForDagreInLevel };
  for (const { first, last, inside } of cutParts(sizes.length, links)) {
    const local = /** @type {Link[]} */ (inside.map((place) => [links[place][0] - first, links[place][1] - first]));
    const part = layPart(sizes.slice(first, last + 1), local, budget);
    const { x, y } = centres[first];
    part.centres.forEach((centre, place) => { centres[first + place] = { x: x + centre.x, y: y + centre.y }; });
    inside.forEach((link, place) => { routes[link] = part.routes[place].map((point) => ({ x: x + point.x, y: y + point.y })); });
  }
  return framed(sizes, centres, routes);
}

/** @param {number} count @param {Link[]} links */
function cutParts(count, links) {
  /** @type {number[][]} */
  const from = Array.from({ length: count }, () => []);
  links.forEach(([start, end], place) => from[Math.min(start, end)].push(place));
  const parts = [];
  let first = 0, reach = 0;
  /** @type {number[]} */
  let inside = [];
  for (let box = 0; box < count; box += 1) {
    if (box > first && reach <= box) {
      parts.push({ first, last: box, inside });
      first = box;
      inside = [];
    }
    for (const link of from[box]) {
      reach = Math.max(reach, ...links[link]);
      inside.push(link);
    }
  }
  return parts;
}

/** @param {Size[]} sizes @param {Link[]} links @param {{left: number}} budget @returns {Part} */
function layPart(sizes, links, budget) {
  if (sizes.length === 2) return layPair(sizes, links);
  const key = `${sizes.map(({ w, h }) => `${w}x${h}`)};${links.join(";")}`;
  const isSmall = sizes.length <= mostForDagre && budget.left >= sizes.length;
  const found = kept.get(isSmall ? key : `-${key}`);
  if (found) return found;
  if (kept.size > mostKept) kept.clear();
  if (isSmall) budget.left -= sizes.length;
  const laid = isSmall ? layByDagre(sizes, links) : null;
  const part = laid && !overlap(sizes, laid.centres) ? laid : layLayers(sizes, links);
  kept.set(isSmall ? key : `-${key}`, part);
  return part;
}

/** @param {Size[]} sizes @param {Link[]} links @returns {Part} */
function layPair([above, below], links) {
  const y = (above.h + below.h) / 2 + gap.along;
  const way = [{ x: 0, y: above.h / 2 }, { x: 0, y: y - below.h / 2 }];
  return { centres: [{ x: 0, y: 0 }, { x: 0, y }], routes: links.map(([from]) => (from ? [...way].reverse() : way)) };
}

// The first box is above and the last one below all others, so that parts can be joined there.
/** @param {Size[]} sizes @param {Link[]} links */
function withEnds(sizes, links) {
  const last = sizes.length - 1;
  const isFed = new Set(links.map((link) => Math.max(...link))), feeds = new Set(links.map((link) => Math.min(...link)));
  /** @type {Link[]} */
  const more = [];
  for (let box = 1; box < last; box += 1) {
    if (!isFed.has(box)) more.push([0, box]);
    if (!feeds.has(box)) more.push([box, last]);
  }
  return more;
}

/** @param {Size[]} sizes @param {Link[]} links @returns {Part} */
function layByDagre(sizes, links) {
  const graph = new dagre.Graph({ multigraph: true });
  graph.setGraph({ nodesep: gap.across, edgesep: 8, ranksep: gap.along });
  sizes.forEach(({ w, h }, box) => graph.setNode(String(box), { width: w, height: h }));
  links.forEach(([from, to], place) => {
    if (from !== to) graph.setEdge(String(Math.min(from, to)), String(Math.max(from, to)), {}, String(place));
  });
  withEnds(sizes, links).forEach(([from, to]) => graph.setEdge(String(from), String(to), { weight: 0 }, `end${from}`));
  dagre.layout(graph);
  const origin = graph.node("0"), way = isMirrored(sizes.map((_, box) => graph.node(String(box)))) ? -1 : 1;
  const at = (/** @type {Point} */ { x, y }) => ({ x: way * (x - origin.x), y: y - origin.y });
  return {
    centres: sizes.map((_, box) => at(graph.node(String(box)))),
    routes: links.map(([from, to], place) => {
      if (from === to) return [];
      const points = graph.edge(String(Math.min(from, to)), String(Math.max(from, to)), String(place)).points.map(at);
      return from < to ? points : points.reverse();
    }),
  };
}

// Of boxes beside each other, those that ran first belong on the left.
/** @param {Point[]} centres in order of execution */
function isMirrored(centres) {
  /** @type {Map<number, number>} */
  const last = new Map();
  let steps = 0;
  for (const { x, y } of centres) {
    steps += Math.sign(x - (last.get(y) ?? x));
    last.set(y, x);
  }
  return steps < 0;
}

/** @param {Size[]} sizes @param {Point[]} centres */
function overlap(sizes, centres) {
  return sizes.some((size, one) => sizes.slice(one + 1).some((other, place) => {
    const { x, y } = centres[one], apart = centres[one + 1 + place];
    return Math.abs(x - apart.x) < (size.w + other.w) / 2 - .01 && Math.abs(y - apart.y) < (size.h + other.h) / 2 - .01;
  }));
}

// Layers by the longest way from the first box; within one, boxes are near what they read.
/** @param {Size[]} sizes @param {Link[]} links @returns {Part} */
function layLayers(sizes, links) {
  const centres = sizes.map(() => ({ x: 0, y: 0 }));
  let y = -sizes[0].h / 2;
  for (const row of layersOf(sizes, links, centres)) {
    const high = Math.max(...row.map((box) => sizes[box].h));
    const wide = row.reduce((sum, box) => sum + sizes[box].w + gap.across, -gap.across);
    let x = -wide / 2;
    for (const box of row) {
      centres[box] = { x: x + sizes[box].w / 2, y: y + high / 2 };
      x += sizes[box].w + gap.across;
    }
    y += high + gap.along;
  }
  return { centres, routes: links.map(([from, to]) => straight(centres, sizes, from, to)) };
}

/**
 * Yields layers, each when those above have places.
 * @param {Size[]} sizes @param {Link[]} links @param {Point[]} centres @returns {Generator<number[]>}
 */
function* layersOf(sizes, links, centres) {
  const last = sizes.length - 1;
  /** @type {number[][]} */
  const readers = sizes.map(() => []);
  links.forEach((link) => readers[Math.max(...link)].push(Math.min(...link)));
  /** @type {number[]} */
  const layer = [];
  sizes.forEach((_, box) => {
    const above = readers[box].filter((other) => other !== box).map((other) => layer[other] + 1);
    layer[box] = above.length ? Math.max(...above) : Math.max(layer[box - 1] ?? 0, box ? 1 : 0);
  });
  layer[last] = Math.max(...layer.slice(0, last)) + 1;
  /** @type {number[][]} */
  const layers = [];
  layer.forEach((depth, box) => { (layers[depth] ??= []).push(box); });
  for (const members of layers.filter(Boolean)) {
    const wish = (/** @type {number} */ box) => {
      const xs = readers[box].map((other) => centres[other].x);
      return xs.reduce((sum, x) => sum + x, 0) / (xs.length || 1);
    };
    const boxes = members.map((box) => /** @type {const} */ ([wish(box), box]));
    const row = boxes.sort((one, other) => one[0] - other[0] || one[1] - other[1]).map(([, box]) => box);
    for (let from = 0; from < row.length; from += mostInRow) yield row.slice(from, from + mostInRow);
  }
}

/** @param {Point[]} centres @param {Size[]} sizes @param {number} from @param {number} to @returns {Point[]} */
function straight(centres, sizes, from, to) {
  if (from === to) return [];
  const down = centres[from].y < centres[to].y ? 1 : -1;
  const start = { x: centres[from].x, y: centres[from].y + down * sizes[from].h / 2 };
  const end = { x: centres[to].x, y: centres[to].y - down * sizes[to].h / 2 };
  return [start, end];
}

/** @param {Size[]} sizes @param {Point[]} centres @param {Point[][]} routes @returns {Level} */
function framed(sizes, centres, routes) {
  const edges = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
  const see = (/** @type {number} */ x, /** @type {number} */ y) => {
    edges.left = Math.min(edges.left, x);
    edges.right = Math.max(edges.right, x);
    edges.top = Math.min(edges.top, y);
    edges.bottom = Math.max(edges.bottom, y);
  };
  sizes.forEach(({ w, h }, box) => {
    see(centres[box].x - w / 2, centres[box].y - h / 2);
    see(centres[box].x + w / 2, centres[box].y + h / 2);
  });
  routes.forEach((route) => route.forEach(({ x, y }) => see(x, y)));
  const at = (/** @type {number} */ x, /** @type {number} */ y) => ({ x: x - edges.left, y: y - edges.top });
  return {
    w: edges.right - edges.left, h: edges.bottom - edges.top,
    places: centres.map(({ x, y }, box) => at(x - sizes[box].w / 2, y - sizes[box].h / 2)),
    routes: routes.map((route) => route.map(({ x, y }) => at(x, y))),
  };
}
