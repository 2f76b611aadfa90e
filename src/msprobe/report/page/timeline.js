// SPDX-License-Identifier: Apache-2.0
// Errors along the execution, on a logarithmic scale. What has no number stands in a lane on top,
// what is equal in one at the bottom.

const timeline = { canvas: byId("timeline"), points: [], hovered: null };
const margins = { left: 76, right: 14, top: 10, bottom: 20, lane: 17 };

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }

function errorRange() {
  let low = 0, high = -8;
  const see = (error) => {
    if (error > 0 && Number.isFinite(error)) {
      low = Math.min(low, Math.floor(Math.log10(error)));
      high = Math.max(high, Math.ceil(Math.log10(error)));
    }
  };
  operations.forEach((each) => { see(each.errorIn); see(each.errorOut); });
  data.profile.forEach(([, , , error]) => see(number(error)));
  low = Math.max(Math.min(low, -2), -14);
  return [low, Math.min(Math.max(high, low + 2), 12)];
}
const [lowDecade, highDecade] = errorRange();

// Steps and ranks stand one after the other, each as wide as it is long.
function readSpans() {
  const spans = new Map();
  let begin = 0;
  for (const [step, rank, last] of data.spans) {
    const key = `${step}/${rank}`;
    if (filters.comparison && key !== filters.comparison) continue;
    spans.set(key, { begin, end: begin + last + 1, name: placeName(step, rank) });
    begin += last + 1 + Math.ceil((last + 1) / 60);
  }
  return { spans, end: Math.max(begin, 2) };
}

function scales(width, height) {
  const inner = width - margins.left - margins.right;
  const top = margins.top + margins.lane, bottom = height - margins.bottom - margins.lane;
  const { spans, end } = readSpans();
  const at = (position) => margins.left + 6 + (inner - 12) * position / (end - 1);
  return {
    spans, at,
    x: (place) => at((spans.get(`${place.step}/${place.rank}`)?.begin ?? 0) + place.order),
    y: (error) => {
      if (error === null || Number.isNaN(error) || error === Infinity) return margins.top + 4;
      if (error <= 0) return height - margins.bottom - 4;
      const place = (Math.log10(error) - lowDecade) / (highDecade - lowDecade);
      return bottom - Math.min(Math.max(place, 0), 1) * (bottom - top);
    },
    top, bottom,
  };
}

// The error that an operation stands at: that of its worst value, or of what came out.
function heightOf(operation) {
  if (operation.differs) return cell(data.values, "error", operation.worst);
  return operation.errorOut ?? operation.errorIn ?? 0;
}

function drawTimeline() {
  const { canvas } = timeline;
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!width) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const scale = scales(width, height);
  drawGround(pen, scale, height);
  drawAxes(pen, scale, width, height);
  drawProfile(pen, scale);
  drawPoints(pen, scale);
}

// A shade where gradients flow; lines between steps and ranks.
function drawGround(pen, scale, height) {
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "left";
  const wide = pen.canvas.clientWidth, room = (wide - margins.left) / scale.spans.size;
  for (const [key, span] of scale.spans) {
    const first = operations.find((each) => `${each.step}/${each.rank}` === key && /\.backward(\.|$)/.test(each.name));
    const left = scale.at(span.begin), right = scale.at(span.end);
    pen.fillStyle = colour("shade");
    if (first) pen.fillRect(scale.x(first) - 3, 4, right - scale.x(first) + 3, height - margins.bottom - 4);
    pen.fillStyle = colour("dim");
    if (first && right - scale.x(first) > 60) pen.fillText("backward", scale.x(first) + 2, height - 6);
    if (scale.spans.size > 1 && room > 70) pen.fillText(span.name, left, height - 6);
    if (span.begin) {
      pen.fillStyle = colour("line");
      pen.fillRect(Math.round(left) - 5, 4, 1, height - margins.bottom - 4);
    }
  }
}

function drawAxes(pen, scale, width, height) {
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  pen.lineWidth = 1;
  const space = (scale.bottom - scale.top) / (highDecade - lowDecade);
  const every = Math.max(1, Math.ceil(20 / space));
  const lines = [[null, "no number"], [0, "equal"]];
  for (let decade = lowDecade; decade <= highDecade; decade += every) lines.push([10 ** decade, `1e${decade}`]);
  for (const [error, label] of lines) {
    const y = Math.round(scale.y(error)) + 0.5;
    pen.strokeStyle = colour("line");
    pen.beginPath();
    pen.moveTo(margins.left, y);
    pen.lineTo(width - margins.right, y);
    pen.stroke();
    pen.fillStyle = colour("dim");
    pen.fillText(label, margins.left - 8, y);
  }
  pen.textBaseline = "alphabetic";
  pen.textAlign = "left";
  if (scale.spans.size < 2 && width > 600) pen.fillText("relative error along the execution", margins.left, height - 6);
}

// Where the page does not hold all operations, their largest errors still show as a skyline.
function drawProfile(pen, scale) {
  const floor = scale.y(0);
  pen.fillStyle = colour("inherited");
  pen.globalAlpha = 0.22;
  data.profile.forEach(([step, rank, order, error], place) => {
    const span = scale.spans.get(`${step}/${rank}`);
    if (!span) return;
    const next = data.profile[place + 1];
    const end = next && next[0] === step && next[1] === rank ? next[2] : span.end - span.begin;
    const left = scale.at(span.begin + order), y = scale.y(number(error));
    pen.fillRect(left, y, scale.at(span.begin + end) - left, floor - y);
  });
  pen.globalAlpha = 1;
}

const pointSizes = {
  agrees: 1.6, inherited: 2.1, unmatched: 3, other: 3, nonfinite: 3.4, input: 3.6, amplified: 4, introduced: 5.5,
};

// What says more lies on top.
const layers = Object.keys(pointSizes);

function drawPoints(pen, scale) {
  const visible = new Set(list.shown);
  const place = new Map(layers.map((name, layer) => [name, layer]));
  timeline.points = operations.filter(inComparison)
    .sort((left, right) => place.get(left.group) - place.get(right.group))
    .map((operation) => ({ operation, x: scale.x(operation), y: scale.y(heightOf(operation)) }));
  const colours = Object.fromEntries(layers.map((name) => [name, colour(name)]));
  for (const { operation, x, y } of timeline.points) {
    const isFaint = !visible.has(operation) && operation.group !== "agrees";
    pen.globalAlpha = isFaint ? 0.2 : operation.group === "agrees" ? 0.55 : operation.group === "inherited" ? 0.75 : 1;
    pen.fillStyle = colours[operation.group];
    drawShape(pen, operation.group, x, y, pointSizes[operation.group]);
  }
  pen.globalAlpha = 1;
  drawRing(pen, scale, detail.operation, colour("text"));
}

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

function drawRing(pen, scale, operation, strokeColour) {
  if (!operation || !inComparison(operation)) return;
  pen.strokeStyle = strokeColour;
  pen.lineWidth = 1.6;
  pen.beginPath();
  pen.arc(scale.x(operation), scale.y(heightOf(operation)), 8.5, 0, 7);
  pen.stroke();
}

function nearest(event) {
  const box = timeline.canvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  let found = null, best = 196;
  for (const point of timeline.points) {
    // Later points lie on top, and those that say more draw the pointer from farther away.
    const reach = point.operation.group === "introduced" ? 0.4 : 1;
    const distance = ((point.x - x) ** 2 + (point.y - y) ** 2) * reach;
    if (distance <= best) { best = distance; found = point; }
  }
  return found;
}

function showTip(event) {
  const tip = byId("tip"), point = nearest(event);
  timeline.canvas.style.cursor = point ? "pointer" : "default";
  tip.hidden = !point;
  if (!point) return;
  const { operation } = point;
  const where = joined(severalComparisons ? placeName(operation.step, operation.rank) : "",
    operation.kind.replace("_", " "), operation.module, operation.origin ?? operation.status);
  const came = operation.unmeasuredIn ?? digits(operation.errorIn);
  const left = operation.unmeasuredOut ?? digits(operation.errorOut);
  replace(tip,
    element("div", {}, mark(operation.group), ` ${operation.label}`),
    element("div", { class: "dim" }, where),
    element("div", {}, `in ${came}  →  out ${left}`));
  const room = timeline.canvas.clientWidth;
  tip.style.left = `${Math.min(point.x + 12, room - tip.offsetWidth - 6)}px`;
  tip.style.top = `${Math.max(point.y - tip.offsetHeight - 10, 4)}px`;
}

function startTimeline() {
  const { canvas } = timeline;
  canvas.addEventListener("mousemove", showTip);
  canvas.addEventListener("mouseleave", () => { byId("tip").hidden = true; });
  canvas.addEventListener("click", (event) => { const point = nearest(event); if (point) openOperation(point.operation); });
  const count = Object.values(summary.counts).reduce((sum, each) => sum + each, 0);
  const what = `Relative error of ${plural(count, "value")} along the execution; the list holds the same.`;
  canvas.setAttribute("aria-label", what);
  const present = new Set(operations.map((each) => each.group));
  const names = { agrees: "agrees", other: "shape or type", unmatched: "no partner", nonfinite: "NaN or Inf" };
  for (const group of layers.filter((name) => present.has(name)).reverse()) {
    const meaning = words.origins[group] ?? "";
    byId("legend").append(element("span", { title: meaning }, mark(group), ` ${names[group] ?? group}`));
  }
  new ResizeObserver(drawTimeline).observe(canvas);
}
