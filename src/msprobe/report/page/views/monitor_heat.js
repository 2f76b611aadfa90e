// SPDX-License-Identifier: Apache-2.0
// Heat maps: layers or ranks over steps, layers over ranks; a click selects the series and the step.

import { ask, cellsOf, isLive, onGrowth, overview } from "../data/monitor.js";
import { open } from "../shared/detail.js";
import { element, joined, replace } from "../shared/dom.js";
import { digits, grouped } from "../shared/format.js";
import { say } from "../shared/language.js";
import { change, state } from "../shared/store.js";
import { colour, onTheme } from "../shared/theme.js";

/** @typedef {import("../data/monitor.js").Heat} Heat */

const axes = { "layer": "layers × steps", "rank": "ranks × steps", "layers of ranks": "layers × ranks" };
const widestGutter = 230, ruler = 22, least = 3, most = 18, font = "11px system-ui, sans-serif", mostSorted = 20000;
// Dark to bright, as readable in grey; for ratios from below to above, through the page's own colour.
const ramp = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const both = [[33, 102, 172], [146, 197, 222], [247, 247, 247], [244, 165, 130], [178, 24, 43]];

const canvas = element("canvas", { id: "heat-map", role: "img", tabindex: "0" });
const scroller = element("div", { class: "heat-box" }, canvas);
const note = element("span", {}), scale = element("span", { class: "heat-scale" });
const foot = element("p", { class: "dim heat-note" }, scale, note);
const tip = element("div", { class: "heat-tip", "aria-live": "polite" });
const controls = element("div", { class: "heat-controls" });
/** @type {Heat | null} */
let heat = null;
/** @type {ReturnType<typeof cellsOf>} */
let read;
let asked = "";
let cursor = { row: 0, column: 0 };
let gutter = widestGutter; // as wide as the names need

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "heat", title: "Heat map", place: "main", needs: ["monitor"],
  state: { stream: "", op: "", axis: "layer", run: "0", rank: "", log: "1", step: "" },
  uses: ["stream", "op", "axis", "run", "rank", "log", "step", "at"],
  start(pane) {
    replace(pane, controls, scroller, tip, foot);
    canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) => point(event));
    canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => { if (point(event)) pick(); });
    canvas.addEventListener("keydown", move);
    new ResizeObserver(draw).observe(scroller);
    onTheme(draw);
    onGrowth(() => { asked = ""; view.render(); });
  },
  render() {
    drawControls();
    load();
  },
};

function streamNow() {
  const { streams, stream } = overview();
  return streams.find((/** @type {any} */ one) => one.name === (state.stream || stream)) ?? streams[0];
}

function opNow() {
  const { ops, op } = streamNow();
  return ops.includes(state.op) ? state.op : op;
}

/** @param {string} label @param {string} name @param {string} now @param {[string, string][]} options */
function choice(label, name, now, options) {
  const chosen = element("select", { id: `heat-${name}`, change: () => change({ [name]: chosen.value }) },
    ...options.map(([value, text]) => element("option", { value, selected: value === now }, say(text))));
  return element("label", {}, `${say(label)} `, chosen);
}

function drawControls() {
  const { streams, runs } = overview();
  if (!streams.length) return;
  const stream = streamNow();
  const ranks = runs[0].ranks.map((/** @type {number} */ rank) => [String(rank), String(rank)]);
  const log = element("input", { type: "checkbox", id: "heat-log", checked: state.log === "1", change: () => change({ log: log.checked ? "1" : "" }) });
  replace(controls,
    choice("stream", "stream", stream.name, streams.map((/** @type {any} */ one) => [one.name, one.name])),
    choice("op", "op", opNow(), stream.ops.map((/** @type {string} */ op) => [op, op])),
    choice("show", "axis", state.axis, Object.entries(axes).filter(([axis]) => axis === "layer" || isLive)),
    ranks.length > 1 ? choice("rank", "rank", state.rank || ranks[0][0], ranks) : null,
    runs.length > 1 ? choice("run", "run", state.run, [["0", "target"], ["1", "reference"], ["ratio", "target / reference"]]) : null,
    element("label", {}, log, ` ${say("logarithmic")}`));
}

async function load() {
  if (!overview().streams.length) return;
  const rank = overview().runs[0].ranks.length > 1 ? state.rank : "";
  const parameters = { stream: streamNow().name, op: opNow(), axis: state.axis, run: state.run, rank };
  const at = state.axis === "rank" ? state.at : state.axis === "layers of ranks" ? state.step : "";
  const wanted = JSON.stringify({ ...parameters, at });
  if (wanted === asked) return draw();
  asked = wanted;
  const answer = await ask("heat", { ...parameters, at });
  if (wanted !== asked) return undefined; // another one was asked for meanwhile
  heat = answer;
  if (answer) read = cellsOf(answer);
  cursor = { row: 0, column: 0 };
  return draw();
}

function rowHeight() {
  if (!heat?.rows.length) return most;
  return Math.max(least, Math.min(most, (scroller.clientHeight - ruler - 4) / heat.rows.length));
}

function draw() {
  if (!scroller.clientWidth) return;
  const rows = heat?.rows.length ?? 0, high = rowHeight();
  const width = scroller.clientWidth, height = Math.ceil(rows * high + ruler);
  const dots = window.devicePixelRatio || 1;
  canvas.width = width * dots;
  canvas.height = height * dots;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  note.textContent = heat ? words(heat) : say("The exported page does not hold this picture; msprobe monitor view shows it.");
  const pen = canvas.getContext("2d");
  drawScale();
  if (!pen || !heat || !rows) return;
  pen.scale(dots, dots);
  pen.font = font;
  gutter = Math.min(widestGutter, Math.ceil(Math.max(...heat.rows.map((name) => pen.measureText(cut(name)).width))) + 14);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(drawn(heat).picture, gutter, ruler, width - gutter, rows * high);
  drawNames(pen, heat, high, width);
  drawMarks(pen, heat, high, width);
  canvas.setAttribute("aria-label", say("Heat map of {} {}: {} rows, {} columns.", streamNow().name, opNow(), rows, heat.columns.length));
}

/** @param {string} name */
const cut = (name) => name.length > 36 ? `…${name.slice(-35)}` : name;

/** Shows which values the first and the last colour stand for. */
function drawScale() {
  replace(scale);
  if (!heat?.rows.length) return;
  const { low, span, stops } = drawn(heat), bar = element("span", { class: "heat-colours" });
  bar.style.background = `linear-gradient(to right, ${stops.map((tone) => `rgb(${tone})`).join()})`;
  const [from, to] = [low, low + span].map((at) => digits(onLogScale() ? 10 ** at : at));
  replace(scale, from, bar, `${to} · ${say("pink: NaN or Inf")} · ${onLogScale() ? `${say("black: 0")} · ` : ""}`);
}

/** @param {Heat} shown */
function words(shown) {
  const cut = shown.rows.length < shown.of_rows ? say("the first {} of {} rows", shown.rows.length, grouped(shown.of_rows)) : "";
  const joinedSteps = shown.columns.length < shown.of_columns ? say("{} steps in {} columns, the largest of each", grouped(shown.of_columns), shown.columns.length) : "";
  const place = shown.axis === "rank" ? `of ${shown.at}` : shown.axis === "layers of ranks" ? say("at step {}", grouped(Number(shown.at))) : "";
  return joined(place, cut, joinedSteps, say("arrows move, Enter selects"));
}

/**
 * A heat map as it is drawn: places of the values on the scale, and the picture, one dot for a cell.
 * @typedef {{key: string, shown: Heat, low: number, span: number, stops: number[][], picture: HTMLCanvasElement}} Drawing
 * @type {Drawing | null}
 */
let drawing = null;

/** Returns the drawing of a heat map; a mere move of the cursor makes no new one. @param {Heat} shown @returns {Drawing} */
function drawn(shown) {
  const key = `${state.run} ${state.log}`;
  if (drawing?.shown !== shown || drawing.key !== key) {
    const placeOf = placing(), scale = range(shown, placeOf);
    drawing = { key, shown, ...scale, picture: pictureOf(shown, placeOf, scale) };
  }
  return drawing;
}

const onLogScale = () => state.log === "1" || state.run === "ratio";

/** Returns where a cell is on the scale: NaN if absent, Infinity for NaN and Inf, -Infinity for the logarithm of zero. @returns {(at: number) => number} */
function placing() {
  const { cells, isAbsent } = read, isLog = onLogScale();
  return (at) => {
    const cell = cells[at];
    if (!Number.isFinite(cell)) return isAbsent(at) ? NaN : Infinity;
    return isLog ? Math.log10(Math.abs(cell)) : cell;
  };
}

/** Returns where the first colour is, how far the last one, and the colours. @param {Heat} shown @param {(at: number) => number} placeOf */
function range(shown, placeOf) {
  const isRatio = state.run === "ratio", count = read.cells.length, found = [];
  let every = Math.ceil(count / mostSorted);
  while (every > 1 && shown.columns.length % every === 0) every += 1; // not always the same columns
  for (let at = 0; at < count; at += every) {
    const place = placeOf(at);
    if (Number.isFinite(place) && !(isRatio && place === 0)) found.push(isRatio ? Math.abs(place) : place);
  }
  const sorted = Float64Array.from(found).sort();
  // The outermost values would leave no colours for the others.
  const low = sorted[Math.floor(sorted.length * 0.005)] ?? 0, top = sorted[Math.ceil(sorted.length * 0.995) - 1];
  if (!isRatio) return { low, span: (top ?? 1) - low || 1, stops: ramp };
  const size = Math.max(1e-6, top ?? 0);
  return { low: -size, span: 2 * size, stops: both };
}

/** @param {Heat} shown @param {(at: number) => number} placeOf @param {{low: number, span: number, stops: number[][]}} scale */
function pictureOf(shown, placeOf, { low, span, stops }) {
  const data = new ImageData(Math.max(shown.columns.length, 1), shown.rows.length);
  const dots = new Uint32Array(data.data.buffer), last = 255;
  const tones = Uint32Array.from({ length: last + 1 }, (_, step) => packed(toneAt(step / last, stops)));
  const pink = packed([230, 20, 120]), black = packed([0, 0, 0]), scaled = last / span;
  for (let at = 0; at < dots.length; at += 1) {
    const place = placeOf(at), tone = (place - low) * scaled;
    if (place === Infinity) dots[at] = pink;
    else if (place === -Infinity) dots[at] = black;
    else if (!Number.isNaN(place)) dots[at] = tones[tone <= 0 ? 0 : tone >= last ? last : tone + 0.5 | 0];
  }
  const picture = document.createElement("canvas");
  picture.width = data.width;
  picture.height = data.height;
  picture.getContext("2d")?.putImageData(data, 0, 0);
  return picture;
}

/** Returns an opaque colour as it lies in memory. @param {number[]} tone */
const packed = (tone) => new Uint32Array(Uint8Array.from([...tone, 255]).buffer)[0];

/** @param {number} share @param {number[][]} stops */
function toneAt(share, stops) {
  const at = share * (stops.length - 1), from = Math.min(Math.floor(at), stops.length - 2);
  return stops[from].map((tone, part) => Math.round(tone + (at - from) * (stops[from + 1][part] - tone)));
}

/** @param {CanvasRenderingContext2D} pen @param {Heat} shown @param {number} high @param {number} width */
function drawNames(pen, shown, high, width) {
  pen.fillStyle = colour("dim");
  pen.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(11 / high));
  const selected = shown.rows.indexOf(state.at);
  shown.rows.forEach((name, row) => {
    const isHidden = selected >= 0 && row !== selected && Math.abs(row - selected) * high < 11;
    if (row !== selected && (row % every || isHidden)) return;
    pen.fillStyle = colour(row === selected ? "link" : "dim");
    pen.fillText(cut(name), 4, ruler + (row + 0.5) * high, gutter - 10);
  });
  pen.fillStyle = colour("dim");
  const wide = (width - gutter) / shown.columns.length;
  const gap = Math.max(1, Math.ceil(60 / wide));
  shown.columns.forEach((column, place) => {
    const label = grouped(column), left = gutter + place * wide;
    if (place % gap === 0 && left + pen.measureText(label).width <= width) pen.fillText(label, left, ruler / 2);
  });
}

/** Draws incidents, where two runs part, the cursor. @param {CanvasRenderingContext2D} pen @param {Heat} shown @param {number} high @param {number} width */
function drawMarks(pen, shown, high, width) {
  const wide = (width - gutter) / shown.columns.length;
  if (state.axis !== "layers of ranks") {
    const { incidents, parting } = overview();
    const tick = (/** @type {number} */ step, /** @type {string} */ tone) => {
      const place = shown.columns.findLastIndex((column) => column <= step);
      if (place < 0) return;
      pen.fillStyle = colour(tone);
      pen.fillRect(gutter + place * wide, 0, Math.max(2, Math.min(wide, 4)), ruler);
    };
    for (const { start, severity } of incidents) tick(start, severity === "critical" ? "pink" : "amber");
    if (parting?.first_apart) tick(parting.first_apart.first_apart, "violet");
    if (state.step) tick(Number(state.step), "link");
  }
  pen.strokeStyle = colour("text");
  pen.strokeRect(gutter + cursor.column * wide, ruler + cursor.row * high, Math.max(wide, 3), high);
}

/** Moves the cursor to the mouse; returns whether it is on a cell. @param {MouseEvent} event */
function point(event) {
  if (!heat?.rows.length) return false;
  const row = Math.floor((event.offsetY - ruler) / rowHeight());
  const column = Math.floor((event.offsetX - gutter) * heat.columns.length / (scroller.clientWidth - gutter));
  if (row < 0 || row >= heat.rows.length || column >= heat.columns.length) return false;
  cursor = { row, column: Math.max(column, 0) };
  tellCell();
  return true;
}

function tellCell() {
  if (!heat) return;
  const step = heat.columns[cursor.column], at = cursor.row * heat.columns.length + cursor.column;
  const place = state.axis === "layers of ranks" ? say("rank {}", step) : say("step {}", grouped(step));
  tip.textContent = `${heat.rows[cursor.row]} · ${place} · ${read.isAbsent(at) ? say("absent") : digits(read.cells[at])}`;
}

function pick() {
  if (!heat) return;
  const row = heat.rows[cursor.row], column = String(heat.columns[cursor.column]);
  if (state.axis === "rank") change({ rank: row.replace("rank ", ""), step: column });
  else if (state.axis === "layers of ranks") { change({ rank: column }); open(row); }
  else { change({ step: column }); open(row); }
}

/** @param {KeyboardEvent} event */
function move(event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const by = steps[/** @type {keyof typeof steps} */ (event.key)];
  if (!heat?.rows.length || !(by || event.key === "Enter")) return;
  event.preventDefault();
  if (by) {
    cursor.row = Math.max(0, Math.min(heat.rows.length - 1, cursor.row + by[0]));
    cursor.column = Math.max(0, Math.min(heat.columns.length - 1, cursor.column + by[1]));
    draw();
    tellCell();
  } else pick();
}
