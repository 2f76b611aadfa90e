// SPDX-License-Identifier: Apache-2.0
// Lines over steps, drawn by uPlot.

import { digits } from "../shared/format.js";
import { say } from "../shared/language.js";
import { colour } from "../shared/theme.js";
import { uPlot } from "../vendor/uplot.js";
import { lineName, overview, read } from "./monitor.js";

const colours = ["blue", "orange", "green", "violet", "pink", "amber", "steel", "grey"];

/**
 * Draws a series in place of what a box holds.
 * @param {HTMLElement} box
 * @param {import("./monitor.js").Series} series
 * @param {{height: number, isLog: boolean, title?: string, step?: number | null, pick?: (step: number) => void}} options
 */
export function drawSeries(box, series, { height, isLog, title = "", step = null, pick }) {
  const lines = series.lines.map((line) => [line.steps, line.values.map(read).map(finite)]);
  const data = lines.length > 1 ? /** @type {any} */ (uPlot).join(lines) : lines[0] ?? [[], []];
  const values = lines.flatMap(([, each]) => each.filter((value) => value !== null));
  const canLog = isLog && values.length > 0 && values.every((value) => value > 0);
  const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  const options = {
    width: Math.max(box.clientWidth, 120), height, title,
    scales: { x: { time: false }, y: canLog ? { distr: 3 } : {} },
    axes: [{ ...axis, size: 28 }, { ...axis, size: 64, values: axisTexts }],
    legend: { show: height > 160 },
    cursor: { drag: { x: true, y: false } },
    series: [
      { label: say("step") },
      ...series.lines.map((line, place) => ({
        label: lineName(line), stroke: colour(colours[place % colours.length]), width: 1.3,
        points: { show: line.steps.length < 40 }, value: (/** @type {any} */ _, /** @type {number | null} */ value) => digits(value),
      })),
    ],
    hooks: { draw: [(/** @type {any} */ plot) => marks(plot, step)] },
  };
  const plot = new /** @type {any} */ (uPlot)(options, data);
  box.replaceChildren(plot.root);
  if (pick) plot.over.addEventListener("click", () => { if (plot.cursor.idx !== null) pick(plot.data[0][plot.cursor.idx]); });
  return plot;
}

/** @param {any} _ @param {(number | null)[]} marked */
function axisTexts(_, marked) { return marked.map((mark) => (mark === null ? "" : digits(mark))); }

/** @param {number | null} value */
function finite(value) { return value !== null && Number.isFinite(value) ? value : null; }

/** Draws incidents, where two runs part, and the selected step. @param {any} plot @param {number | null} step */
function marks(plot, step) {
  const { incidents, parting } = overview();
  const pen = plot.ctx;
  const lineAt = (/** @type {number} */ at, /** @type {string} */ tone, /** @type {number[]} */ dashes) => {
    const x = plot.valToPos(at, "x", true);
    if (!(x >= plot.bbox.left && x <= plot.bbox.left + plot.bbox.width)) return;
    pen.strokeStyle = colour(tone);
    pen.setLineDash(dashes);
    pen.beginPath();
    pen.moveTo(x, plot.bbox.top);
    pen.lineTo(x, plot.bbox.top + plot.bbox.height);
    pen.stroke();
  };
  pen.save();
  for (const { start, severity } of incidents) lineAt(start, severity === "critical" ? "pink" : "amber", [4, 3]);
  if (parting?.first_apart) lineAt(parting.first_apart.first_apart, "violet", [2, 2]);
  if (step !== null) lineAt(step, "link", []);
  pen.restore();
}
