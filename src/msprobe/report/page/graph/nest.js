// SPDX-License-Identifier: Apache-2.0
// Boxes within boxes: what is open holds its children, laid out level by level. A box is computed
// anew only when something in it was opened or closed.

import { layLevel } from "./layout.js";

/** @typedef {import("./layout.js").Point} Point */
/** @typedef {import("./layout.js").Size} Size */

/**
 * A line between two boxes of a level. Its ends are places among the children; −1 is the border of
 * the box around them.
 * @typedef {{from: number, to: number, edges: number[]}} Line
 */

/**
 * @typedef {object} Nested what is to be laid out
 * @property {(node: number) => number[]} children in order of execution
 * @property {(node: number) => Line[]} lines between its children
 * @property {(node: number) => boolean} isOpen
 * @property {(node: number) => Size} size of a closed box
 */

/**
 * @typedef {object} Box
 * @property {number} node
 * @property {number} w
 * @property {number} h
 * @property {{box: Box, x: number, y: number}[]} inside places are from the box's own corner
 * @property {{line: Line, points: Point[]}[]} routes
 */

export const headHeight = 30;
const padding = 14;
const port = { w: 2, h: 2 };

export class Nest {
  /** @type {Map<number, Box>} */
  #boxes = new Map();

  /** @param {Nested} nested @param {import("./layout.js").Direction} direction */
  constructor(nested, direction) {
    this.nested = nested;
    this.direction = direction;
  }

  /** Forgets the places in a box and in those around it. @param {number[]} nodes it and all around it */
  forget(nodes) { nodes.forEach((node) => this.#boxes.delete(node)); }

  forgetAll() { this.#boxes.clear(); }

  /** Returns the box of a node, with all that is open in it. @param {number} node @returns {Box} */
  box(node) {
    const found = this.#boxes.get(node);
    if (found) return found;
    const made = this.nested.isOpen(node) ? this.#open(node) : { node, ...this.nested.size(node), inside: [], routes: [] };
    this.#boxes.set(node, made);
    return made;
  }

  /** @param {number} node @returns {Box} */
  #open(node) {
    const boxes = this.nested.children(node).map((child) => this.box(child));
    const lines = this.nested.lines(node);
    const hasIn = lines.some(({ from }) => from < 0), hasOut = lines.some(({ to }) => to < 0);
    const sizes = [...(hasIn ? [port] : []), ...boxes, ...(hasOut ? [port] : [])];
    const shift = hasIn ? 1 : 0;
    const level = layLevel(sizes, lines.map(({ from, to }) => [
      from < 0 ? 0 : from + shift, to < 0 ? sizes.length - 1 : to + shift]), this.direction);
    // Values that leave the box are drawn up to its border.
    const isDown = this.direction === "down", [under, beside] = [hasOut && isDown ? 0 : padding, hasOut && !isDown ? padding : 0];
    const w = Math.max(level.w + 2 * padding - beside, this.nested.size(node).w), left = beside ? w - level.w : (w - level.w) / 2;
    const at = (/** @type {Point} */ { x, y }) => ({ x: x + left, y: y + headHeight });
    return {
      node, w, h: level.h + headHeight + under,
      inside: boxes.map((box, place) => ({ box, ...at(level.places[place + shift]) })),
      routes: lines.map((line, place) => ({ line, points: level.routes[place].map(at) })),
    };
  }
}

/** @typedef {{x: number, y: number, w: number, h: number, box: Box, depth: number}} Placed */

/**
 * Calls back for a box and all in it that a rectangle shows, outer ones first.
 * @param {Box} box
 * @param {{left: number, top: number, right: number, bottom: number}} sight
 * @param {(placed: Placed) => boolean} draw returns whether to go on with what is inside
 */
export function walk(box, sight, draw, x = 0, y = 0, depth = 0) {
  if (x > sight.right || y > sight.bottom || x + box.w < sight.left || y + box.h < sight.top) return;
  if (!draw({ x, y, w: box.w, h: box.h, box, depth })) return;
  box.inside.forEach((each) => walk(each.box, sight, draw, x + each.x, y + each.y, depth + 1));
}

/**
 * Returns where the box of a node is, seen from the outermost one.
 * @param {Box} box the outermost one
 * @param {number[]} path nodes from below the outermost one down to it
 * @returns {Placed}
 */
export function locate(box, path) {
  let x = 0, y = 0, depth = 0;
  for (const node of path) {
    const found = box.inside.find((each) => each.box.node === node);
    if (!found) break;
    x += found.x;
    y += found.y;
    box = found.box;
    depth += 1;
  }
  return { x, y, w: box.w, h: box.h, box, depth };
}
