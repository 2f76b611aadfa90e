// SPDX-License-Identifier: Apache-2.0
// Errors in parts of the allowed ones along the execution, on a logarithmic scale; the line is the allowed error.

import { results, selected, shownResults, verdictOf, verdicts } from "../data/verify.js";
import { mark } from "../data/words.js";
import { open } from "../shared/detail.js";
import { element, replace } from "../shared/dom.js";
import { digits, plural } from "../shared/format.js";
import { say } from "../shared/language.js";
import { colour, onTheme } from "../shared/theme.js";

/** @typedef {import("../data/verify.js").Result} Result */

const margins = { left: 76, right: 14, top: 10, bottom: 18 };
// Powers of ten from the least to the largest ratio that is drawn; what is beyond lies on the edge.
const least = -3, most = 3;
const radius = { wrong: 4.5, suspicious: 3.6, overflow: 3 };
const canvas = element("canvas", { id: "errors-plot", role: "img", class: "errors-plot" });
const tip = element("div", { id: "tip", class: "tip", hidden: true });
/** @type {{result: Result, x: number, y: number}[]} */
let points = [];

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "errors", title: "Errors along the execution", place: "strip", needs: ["verify", "results"],
  uses: ["q", "verdict", "operator", "at"],
  start(pane) {
    canvas.setAttribute("aria-label", say("Own error over allowed error of {} along the execution; the list holds the same.", plural(results.length, "result")));
    canvas.addEventListener("mousemove", showTip);
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const point = nearest(event);
      if (point) open(point.result.id);
    });
    replace(pane, canvas, legend(), tip);
    onTheme(draw);
    new ResizeObserver(draw).observe(canvas);
  },
  render: draw,
};

function legend() {
  const present = new Set(results.map(verdictOf));
  const entries = Object.entries(verdicts).filter(([word]) => present.has(word) && word !== "not judged");
  return element("div", { class: "legend" }, ...entries.map(([word, [group, meaning]]) => (
    element("span", { title: meaning }, mark(group, say(meaning)), ` ${say(word)}`))));
}

function draw() {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!width) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const y = (/** @type {number} */ power) => (
    margins.top + (height - margins.top - margins.bottom) * (most - power) / (most - least));
  drawAxis(pen, y, width);
  const shown = shownResults().filter((each) => each.ratio !== null).sort((a, b) => Number(a.id) - Number(b.id));
  const end = Math.max(results.length - 1, 1), room = width - margins.left - margins.right - 12;
  points = shown.map((result) => ({
    result, x: margins.left + 6 + room * Number(result.id) / end, y: y(powerOf(result)),
  }));
  const at = selected();
  for (const { result, x, y: top } of points) {
    const word = verdictOf(result);
    pen.fillStyle = colour(verdicts[word][0]);
    pen.beginPath();
    pen.arc(x, top, radius[/** @type {keyof typeof radius} */ (word)] ?? 1.9, 0, 2 * Math.PI);
    pen.fill();
    if (result !== at) continue;
    pen.strokeStyle = colour("text");
    pen.beginPath();
    pen.arc(x, top, 7, 0, 2 * Math.PI);
    pen.stroke();
  }
}

/** @param {Result} result */
function powerOf({ ratio }) {
  if (ratio === null || Number.isNaN(ratio) || ratio === Infinity) return most;
  return Math.min(Math.max(ratio > 0 ? Math.log10(ratio) : least, least), most);
}

/** @param {CanvasRenderingContext2D} pen @param {(power: number) => number} y @param {number} width */
function drawAxis(pen, y, width) {
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "right";
  for (let power = least; power <= most; power += 1) {
    pen.fillStyle = colour(power ? "line" : "introduced");
    pen.fillRect(margins.left, Math.round(y(power)), width - margins.left - margins.right, 1);
    pen.fillStyle = colour("dim");
    pen.fillText(power ? digits(10 ** power) : say("allowed"), margins.left - 6, y(power) + 4);
  }
}

/** @param {MouseEvent} event */
function nearest({ offsetX, offsetY }) {
  let best = null, distance = 12 ** 2;
  for (const point of points) {
    const away = (point.x - offsetX) ** 2 + (point.y - offsetY) ** 2;
    if (away < distance) [best, distance] = [point, away];
  }
  return best;
}

/** @param {MouseEvent} event */
function showTip(event) {
  const point = nearest(event);
  tip.hidden = !point;
  canvas.style.cursor = point ? "pointer" : "";
  if (!point) return;
  const { record, slot, ulps } = point.result;
  replace(tip, element("b", {}, `${record} ${slot}`), element("div", {}, `${say(verdictOf(point.result))} · ${digits(ulps)} ulp`));
  tip.style.left = `${Math.min(point.x + 12, Math.max(canvas.clientWidth - 300, 0))}px`;
  tip.style.top = `${point.y + 12}px`;
}
