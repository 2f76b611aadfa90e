// SPDX-License-Identifier: Apache-2.0
// Two pens that draw the same picture: one on a canvas, one as the text of an SVG file.

/** @typedef {import("./layout.js").Point} Point */

/**
 * @typedef {object} Pen
 * @property {(x: number, y: number, w: number, h: number, style: BoxStyle) => void} box
 * @property {(points: Point[], style: LineStyle) => void} line with an arrow at its end
 * @property {(text: string, x: number, y: number, style: TextStyle) => void} text
 */

/** @typedef {{fill?: string, share?: number, stroke?: string, width?: number, radius?: number, dashed?: boolean, from?: number, to?: number}} BoxStyle */
/** @typedef {{stroke: string, width: number, dashed?: boolean, arrow?: boolean}} LineStyle */
/** @typedef {{fill: string, size: number, bold?: boolean, mono?: boolean, most?: number, right?: boolean}} TextStyle */

const fonts = { text: "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif", mono: "ui-monospace, 'DejaVu Sans Mono', Consolas, monospace" };

/** Returns a text that is not wider than so many letters. @param {string} text @param {TextStyle} style */
function fitted(text, { most, size, mono }) {
  if (most === undefined) return text;
  const letters = Math.floor(most / (size * (mono ? .61 : .56)));
  return text.length <= letters ? text : `${text.slice(0, Math.max(letters - 1, 1))}…`;
}

/** @implements {Pen} */
export class CanvasPen {
  /** @param {CanvasRenderingContext2D} context */
  constructor(context) { this.context = context; }

  /** @param {number} x @param {number} y @param {number} w @param {number} h @param {BoxStyle} style */
  box(x, y, w, h, { fill, share = 1, stroke, width = 1, radius = 5, dashed = false, from = 0, to = 1 }) {
    const { context } = this;
    context.beginPath();
    context.roundRect(x, y, w, h, Math.min(radius, h / 2, w / 2));
    if (fill) {
      context.globalAlpha = share;
      context.fillStyle = fill;
      if (from > 0 || to < 1) {
        context.save();
        context.clip();
        context.fillRect(x + from * w, y, (to - from) * w, h);
        context.restore();
      } else context.fill();
      context.globalAlpha = 1;
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.setLineDash(dashed ? [5, 4] : []);
      context.stroke();
    }
  }

  /** @param {Point[]} points @param {LineStyle} style */
  line(points, { stroke, width, dashed = false, arrow = true }) {
    const { context } = this;
    context.strokeStyle = context.fillStyle = stroke;
    context.lineWidth = width;
    context.setLineDash(dashed ? [4, 3] : []);
    context.beginPath();
    curve(points).forEach(([command, ...at]) => {
      if (command === "M") context.moveTo(at[0], at[1]);
      else if (command === "L") context.lineTo(at[0], at[1]);
      else context.quadraticCurveTo(at[0], at[1], at[2], at[3]);
    });
    context.stroke();
    if (!arrow) return;
    const tip = head(points, 3 + 1.5 * width);
    context.beginPath();
    tip.forEach(({ x, y }, place) => (place ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.fill();
  }

  /** @param {string} text @param {number} x @param {number} y @param {TextStyle} style */
  text(text, x, y, style) {
    const { context } = this;
    context.font = `${style.bold ? "600 " : ""}${style.size}px ${style.mono ? fonts.mono : fonts.text}`;
    context.textAlign = style.right ? "right" : "left";
    context.textBaseline = "middle";
    context.fillStyle = style.fill;
    context.fillText(fitted(text, style), x, y);
  }
}

/** @param {string} text */
function escaped(text) { return text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`); }

/** @implements {Pen} */
export class SvgPen {
  /** @type {string[]} */
  parts = [];

  /** @param {number} x @param {number} y @param {number} w @param {number} h @param {BoxStyle} style */
  box(x, y, w, h, { fill, share = 1, stroke, width = 1, radius = 5, dashed = false, from = 0, to = 1 }) {
    const round = Math.min(radius, h / 2, w / 2).toFixed(1);
    const place = (/** @type {number} */ left, /** @type {number} */ wide) =>
      `<rect x="${left.toFixed(1)}" y="${y.toFixed(1)}" width="${wide.toFixed(1)}" height="${h.toFixed(1)}" rx="${round}"`;
    if (fill) this.parts.push(`${place(x + from * w, (to - from) * w)} fill="${fill}" fill-opacity="${share}"/>`);
    const dash = dashed ? ' stroke-dasharray="5 4"' : "";
    if (stroke) this.parts.push(`${place(x, w)} fill="none" stroke="${stroke}" stroke-width="${width}"${dash}/>`);
  }

  /** @param {Point[]} points @param {LineStyle} style */
  line(points, { stroke, width, dashed = false, arrow = true }) {
    const way = curve(points).map(([command, ...at]) => `${command}${at.map((value) => value.toFixed(1)).join(" ")}`).join("");
    const dash = dashed ? ' stroke-dasharray="4 3"' : "";
    this.parts.push(`<path d="${way}" fill="none" stroke="${stroke}" stroke-width="${width}"${dash}/>`);
    if (!arrow) return;
    const tip = head(points, 3 + 1.5 * width).map(({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
    this.parts.push(`<polygon points="${tip}" fill="${stroke}"/>`);
  }

  /** @param {string} text @param {number} x @param {number} y @param {TextStyle} style */
  text(text, x, y, style) {
    const anchor = style.right ? ' text-anchor="end"' : "", weight = style.bold ? ' font-weight="600"' : "";
    const font = `font-family="${style.mono ? fonts.mono : fonts.text}" font-size="${style.size}"${weight}${anchor}`;
    this.parts.push(`<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" dominant-baseline="central" ${font} fill="${style.fill}">${escaped(fitted(text, style))}</text>`);
  }

  /** Returns the file. @param {number} width @param {number} height @param {string} ground */
  file(width, height, ground) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`
      + `<rect width="100%" height="100%" fill="${ground}"/>${this.parts.join("")}</svg>\n`;
  }
}

/**
 * Returns a way through points without corners, in the commands of SVG.
 * @param {Point[]} points @returns {[string, ...number[]][]}
 */
function curve(points) {
  const [first, ...rest] = points, last = rest.pop();
  if (!last) return [];
  /** @type {[string, ...number[]][]} */
  const way = [["M", first.x, first.y]];
  rest.forEach((point, place) => {
    const next = rest[place + 1];
    const to = next ? { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 } : last;
    way.push(["Q", point.x, point.y, to.x, to.y]);
  });
  if (!rest.length) way.push(["L", last.x, last.y]);
  return way;
}

/** @param {Point[]} points @param {number} size @returns {Point[]} */
function head(points, size) {
  const tip = points[points.length - 1], before = points[points.length - 2] ?? tip;
  const length = Math.hypot(tip.x - before.x, tip.y - before.y) || 1;
  const x = (tip.x - before.x) / length, y = (tip.y - before.y) / length;
  const base = { x: tip.x - size * x, y: tip.y - size * y };
  return [tip, { x: base.x - size * y / 2, y: base.y + size * x / 2 }, { x: base.x + size * y / 2, y: base.y - size * x / 2 }];
}
