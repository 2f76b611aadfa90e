// SPDX-License-Identifier: Apache-2.0
// Pictures of a tensor, where the page has them: the values of both sides, and where their errors are.
// The other side of this is compare/tensors/pictures.py.

import { element, span, title } from "../shared/dom.js";
import { digits, grouped } from "../shared/format.js";
import { say } from "../shared/language.js";
import { number, sections } from "../shared/sections.js";
import { shape } from "../shared/svg.js";

/** @type {any[]} */
const pictures = sections.pictures ?? [];
const shades = "0123456789abcdefghijklmn";
const size = { width: 520, height: 120, bottom: 16 };

/** Returns the pictures of a value of an operation; nothing where there are none. @param {string} id @param {string} slot */
export function picturesOf(id, slot) {
  const found = pictures.find((each) => each.id === id && each.slot === slot);
  if (!found) return [];
  return [...(found.histogram ? histogram(found.histogram) : []), ...errorMap(found.map)];
}

/** @param {{low: number, high: number, target: number[], reference: number[]}} counted */
function histogram({ low, high, target, reference }) {
  const most = Math.max(...target, ...reference), floor = size.height - size.bottom;
  const wide = size.width / target.length;
  const tall = (/** @type {number} */ count) => (floor - 4) * Math.sqrt(count / most);
  const svg = shape("svg", {
    class: "values-plot", viewBox: `0 0 ${size.width} ${size.height}`, role: "img",
    "aria-label": say("How often each value occurs in the target and in the reference"),
  });
  const line = reference.map((count, bin) => `${bin * wide},${floor - tall(count)} ${(bin + 1) * wide},${floor - tall(count)}`);
  target.forEach((count, bin) => {
    const bar = shape("rect", { x: bin * wide, y: floor - tall(count), width: wide - 0.5, height: tall(count), class: "target" });
    const [from, to] = [bin, bin + 1].map((edge) => digits(low + (high - low) * edge / target.length));
    bar.append(shape("title", {}, say("{} to {}: {}, reference {}", from, to, grouped(count), grouped(reference[bin]))));
    svg.append(bar);
  });
  svg.append(shape("polyline", { points: line.join(" "), class: "reference" }),
    shape("text", { x: 0, y: size.height - 3 }, digits(low)),
    shape("text", { x: size.width, y: size.height - 3, "text-anchor": "end" }, digits(high)));
  return [
    title("Values of both sides (square root scale)"), svg,
    element("p", { class: "key dim" }, element("i", { class: "band target" }), ` ${say("target")} `, element("i", { class: "band reference" }), ` ${say("reference")}`),
  ];
}

/** @param {any} map */
function errorMap({ rows, columns, down, right, largest, shades: lines }) {
  const top = number(largest);
  const cells = lines.flatMap((/** @type {string} */ line, /** @type {number} */ row) => [...line].map((shade, column) => {
    const place = `${range("row", down, row, rows)}, ${range("column", right, column, columns)}`;
    return element("i", { class: cellClass(shade), style: cellStyle(shade), title: `${place}: ${meaning(shade, top)}` });
  }));
  const grid = element("div", {
    class: "error-map", role: "img", style: `grid-template-columns:repeat(${right.length},1fr)`,
    "aria-label": say("Where the errors are; the largest is {}", digits(top)),
  }, ...cells);
  return [
    title("Where the errors are"), grid,
    element("p", { class: "key dim" }, say("largest absolute error of each block of {} rows and {} columns ", grouped(rows), grouped(columns)),
      span("scale", element("i", { class: "cell" }), ` ${say("equal")} `,
        element("i", { class: "cell error", style: cellStyle(shades[0]) }), ` ${digits(top * 10 ** -(shades.length / 4))} `,
        element("i", { class: "cell error", style: cellStyle(shades[shades.length - 1]) }), ` ${digits(top)}`,
        lines.some((/** @type {string} */ line) => line.includes("!")) ? span("", " ", element("i", { class: "cell apart" }), ` ${say("NaN or Inf apart")}`) : null)),
  ];
}

/** @param {string} noun @param {number[]} begins @param {number} place @param {number} end */
function range(noun, begins, place, end) {
  const first = begins[place], last = (begins[place + 1] ?? end) - 1;
  return first === last ? say(`${noun} {}`, grouped(first)) : say(`${noun}s {} to {}`, grouped(first), grouped(last));
}

/** @param {string} shade */
function cellClass(shade) { return shade === "." ? "cell" : shade === "!" ? "cell apart" : "cell error"; }

/** @param {string} shade */
function cellStyle(shade) {
  const place = shades.indexOf(shade);
  return place < 0 ? null : `opacity:${(0.12 + 0.88 * place / (shades.length - 1)).toFixed(2)}`;
}

/** @param {string} shade @param {number} largest */
function meaning(shade, largest) {
  if (shade === ".") return say("equal");
  if (shade === "!") return say("NaN or Inf on one side");
  return say("error up to {}", digits(largest * 10 ** ((shades.indexOf(shade) + 1 - shades.length) / 4)));
}
