// SPDX-License-Identifier: Apache-2.0
// A window on one picture: a canvas with a camera, gestures, a map of the whole, and boxes that move to their places.

import { element } from "../shared/dom.js";
import { say } from "../shared/language.js";
import { state } from "../shared/store.js";
import { onTheme } from "../shared/theme.js";
import { look, themed } from "./colours.js";
import { locate, Nest, walk } from "./nest.js";
import { CanvasPen, SvgPen } from "./pens.js";
import { drawPicture } from "./picture.js";

/** @typedef {import("./nest.js").Line} Line */
/** @typedef {import("./nest.js").Placed} Placed */
/** @typedef {import("./picture.js").Place} Place */
/** @typedef {import("./scene.js").Scene} Scene */

/**
 * @typedef {object} Listeners
 * @property {(box: number) => void} pick
 * @property {(box: number) => void} toggle
 * @property {(box: number, event: MouseEvent) => void} menu
 * @property {(pane: Pane, by: {x: number, y: number, zoom: number, at: {x: number, y: number}}) => void} moved
 * @property {(box: number) => string[]} describe lines of a tip
 * @property {(line: Line) => string[]} describeLine
 * @property {(box: number) => boolean} isOpen
 */

const zoomRange = { least: .02, most: 3 };
const mostOfMap = { w: 150, h: 130 };
const leastSeen = 40; // of the picture, in pixels of the window
const moving_ms = 180;
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

export class Pane {
  camera = { k: 1, x: 20, y: 20 };
  selected = -1;
  partner = -1;
  /** @type {Set<number>} */
  hits = new Set();
  /** @type {Set<number>} */
  lit = new Set();
  /** @type {Line | null} */
  hovered = null;
  isPlaced = false;
  #isWaiting = false;
  /** @type {{since: number, from: Map<number, Place>} | null} */
  #moving = null;
  /** @type {(() => void)[]} what waits until the pane has a size */
  #later = [];

  /** @param {Scene} scene @param {string} name @param {Listeners} listeners */
  constructor(scene, name, listeners) {
    this.listeners = listeners;
    this.canvas = element("canvas", { class: "graph-canvas", role: "img", "aria-label": name });
    this.map = element("canvas", { class: "graph-map", "aria-hidden": "true" });
    this.tip = element("div", { class: "tip", hidden: true });
    this.box = element("div", { class: "graph-pane", "data-name": name }, element("div", { class: "graph-name dim" }, name), this.canvas, this.map, this.tip);
    this.#listen();
    this.scene = scene;
    this.nest = this.#nested(scene);
    onTheme(() => this.draw());
    new ResizeObserver(() => {
      if (!this.canvas.clientWidth) return;
      const wasPlaced = this.isPlaced;
      this.isPlaced = true;
      this.#later.splice(0).forEach((act) => act());
      if (wasPlaced) this.#paint(); else this.draw();
    }).observe(this.canvas);
  }

  /** Shows a picture. @param {Scene} scene */
  show(scene) {
    this.scene = scene;
    this.nest = this.#nested(scene);
    this.hovered = null;
  }

  /** @param {Scene} scene */
  #nested(scene) {
    return new Nest({
      children: (box) => scene.shown(box), lines: (box) => scene.lines(box),
      isOpen: (box) => this.listeners.isOpen(box) && scene.shown(box).length > 0, size: (box) => scene.size(box),
    }, state.direction === "right" ? "right" : "down");
  }

  get root() { return this.nest.box(0); }

  /** Calls back when the pane has a size. @param {() => void} act */
  placed(act) { if (this.isPlaced) act(); else this.#later.push(act); }

  /** Returns where a box is in the window. @param {number} box @returns {Place} */
  placeOf(box) {
    const { k, x, y } = this.camera;
    const found = locate(this.root, this.scene.pathOf(box).slice(1));
    return { x: found.x * k + x, y: found.y * k + y, w: found.w * k, h: found.h * k };
  }

  /**
   * Lays boxes out anew after some were opened or closed; one of them stays where it is.
   * @param {number[]} changed
   * @param {number} kept
   */
  relayout(changed, kept) {
    const before = this.#visible(), anchor = this.placeOf(kept);
    changed.forEach((box) => this.nest.forget(this.scene.pathOf(box)));
    const after = this.placeOf(kept);
    this.camera.x += anchor.x - after.x;
    this.camera.y += anchor.y - after.y;
    if (!calm.matches && this.isPlaced) this.#moving = { since: performance.now(), from: before };
    this.draw();
  }

  /** @returns {Map<number, Place>} */
  #visible() {
    /** @type {Map<number, Place>} */
    const found = new Map();
    const { k, x: left, y: top } = this.camera;
    walk(this.root, this.#sight(), ({ x, y, w, h, box }) => {
      if (h * k < 4) return false;
      found.set(box.node, { x: x * k + left, y: y * k + top, w: w * k, h: h * k });
      return true;
    });
    return found;
  }

  #sight() {
    const { k, x, y } = this.camera;
    return { left: -x / k, top: -y / k, right: (this.canvas.clientWidth - x) / k, bottom: (this.canvas.clientHeight - y) / k };
  }

  // Drawing

  draw() {
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    this.canvas.setAttribute("aria-busy", "true");
    requestAnimationFrame(() => {
      this.#isWaiting = false;
      this.#paint();
      if (!this.#isWaiting) this.canvas.removeAttribute("aria-busy");
    });
  }

  #paint() {
    const { canvas } = this, width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    drawPicture(new CanvasPen(context), this.#view(width, height, this.camera));
    if (this.#moving) this.draw(); else this.#paintMap();
  }

  /** @param {number} width @param {number} height @param {import("./picture.js").Camera} camera @returns {import("./picture.js").View} */
  #view(width, height, camera) {
    const { scene, root, selected, partner, hits, lit, hovered } = this;
    return { scene, root, camera, width, height, selected, partner, hits, lit, hovered, ...this.#motion() };
  }

  #motion() {
    const share = this.#moving ? (performance.now() - this.#moving.since) / moving_ms : 1;
    if (share >= 1 || !this.#moving) {
      this.#moving = null;
      return { move: (/** @type {number} */ _, /** @type {Place} */ place) => place, isMoving: false };
    }
    const { from } = this.#moving, eased = share * (2 - share);
    /** @param {number} box @param {Place} place */
    const move = (box, place) => {
      const start = from.get(box);
      if (!start) return place;
      const mix = (/** @type {number} */ one, /** @type {number} */ other) => one + eased * (other - one);
      return { x: mix(start.x, place.x), y: mix(start.y, place.y), w: mix(start.w, place.w), h: mix(start.h, place.h) };
    };
    return { move, isMoving: true };
  }

  // The map: two levels of boxes in their colours, and the window as a frame.
  #paintMap() {
    const { map, root } = this;
    map.hidden = state.map === "no" || !this.isPlaced;
    if (map.hidden) return;
    const k = this.#mapScale();
    map.width = Math.max(Math.ceil(root.w * k), 16);
    map.height = Math.max(Math.ceil(root.h * k), 16);
    const pen = map.getContext("2d");
    let count = 0;
    walk(root, { left: 0, top: 0, right: root.w, bottom: root.h }, ({ x, y, w, h, box, depth }) => {
      count += 1;
      const isOpen = box.inside.length > 0 && w * k > 3 && count < 3000;
      pen.fillStyle = look(this.scene.item(box.node).node, !isOpen).fill || themed("line");
      pen.globalAlpha = isOpen ? .15 : .8;
      pen.fillRect(x * k, y * k, Math.max(w * k, 1), Math.max(h * k, 1));
      return isOpen && depth < 6;
    });
    const sight = this.#sight();
    pen.globalAlpha = 1;
    pen.strokeStyle = themed("text");
    pen.strokeRect(sight.left * k, sight.top * k, (sight.right - sight.left) * k, (sight.bottom - sight.top) * k);
  }

  #mapScale() { return Math.min(mostOfMap.w / this.root.w, mostOfMap.h / this.root.h); }

  /** Returns the picture as an SVG file: all of it, or what the window shows. @param {boolean} isWhole */
  svg(isWhole) {
    const { canvas, root } = this, margin = 16;
    const width = isWhole ? Math.ceil(root.w + 2 * margin) : canvas.clientWidth, height = isWhole ? Math.ceil(root.h + 2 * margin) : canvas.clientHeight;
    const pen = new SvgPen();
    drawPicture(pen, this.#view(width, height, isWhole ? { k: 1, x: margin, y: margin } : this.camera));
    return pen.file(width, height, themed("panel"));
  }

  // The camera

  /** Moves and zooms; a part of the picture stays in sight. @param {number} x @param {number} y @param {number} zoom @param {{x: number, y: number}} at what stays in place */
  moveBy(x, y, zoom = 1, at = { x: this.canvas.clientWidth / 2, y: this.canvas.clientHeight / 2 }) {
    const { camera, canvas, root } = this, k = Math.min(Math.max(camera.k * zoom, zoomRange.least), zoomRange.most), factor = k / camera.k;
    camera.x = inSight(at.x - (at.x - camera.x) * factor + x, root.w * k, canvas.clientWidth);
    camera.y = inSight(at.y - (at.y - camera.y) * factor + y, root.h * k, canvas.clientHeight);
    camera.k = k;
    this.draw();
  }

  /** Shows all of the picture, at most so large. */
  fit(most = 1) {
    this.placed(() => {
      const { canvas, root } = this, k = Math.min((canvas.clientWidth - 24) / root.w, (canvas.clientHeight - 24) / root.h, most);
      this.camera = { k, x: (canvas.clientWidth - root.w * k) / 2, y: Math.max(12, (canvas.clientHeight - root.h * k) / 2) };
      this.draw();
    });
  }

  /** Brings a box into the window. @param {number} box @param {boolean} [isCentred] even if it can be seen */
  reveal(box, isCentred = false) {
    this.placed(() => {
      const { canvas, camera, map } = this;
      if (camera.k < .55) this.moveBy(0, 0, .85 / camera.k);
      const { x, y, w, h } = this.placeOf(box);
      const isSeen = x > 0 && y > 0 && x + Math.min(w, 120) < canvas.clientWidth && y + Math.min(h, 60) < canvas.clientHeight;
      const isUnderMap = !map.hidden && x + w / 2 > map.offsetLeft && y + h / 2 > map.offsetTop;
      if (isSeen && !isUnderMap && !isCentred) { this.draw(); return; }
      const left = Math.max((canvas.clientWidth - w) / 2, 40), top = Math.max((canvas.clientHeight - h) / 2, 40);
      this.moveBy(left - x, top - y);
    });
  }

  // Gestures

  #listen() {
    const { canvas, map } = this;
    canvas.addEventListener("wheel", (/** @type {WheelEvent} */ event) => this.#onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => this.#onDown(event));
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => { if (!event.buttons) this.#onHover(event); });
    canvas.addEventListener("pointerleave", () => this.#hideTip());
    canvas.addEventListener("dblclick", (/** @type {MouseEvent} */ event) => {
      const found = this.#boxAt(event);
      if (found > 0) this.listeners.toggle(found);
    });
    canvas.addEventListener("contextmenu", (/** @type {MouseEvent} */ event) => {
      const found = this.#boxAt(event);
      event.preventDefault();
      if (found >= 0) this.listeners.menu(found, event);
    });
    const jump = (/** @type {PointerEvent} */ event) => {
      if (!event.buttons) return;
      const k = this.#mapScale(), { camera } = this;
      const x = event.offsetX / k * camera.k + camera.x, y = event.offsetY / k * camera.k + camera.y;
      this.#move(canvas.clientWidth / 2 - x, canvas.clientHeight / 2 - y, 1, { x: 0, y: 0 });
    };
    map.addEventListener("pointerdown", jump);
    map.addEventListener("pointermove", jump);
  }

  /** @param {number} x @param {number} y @param {number} zoom @param {{x: number, y: number}} at */
  #move(x, y, zoom, at) {
    this.moveBy(x, y, zoom, at);
    this.listeners.moved(this, { x, y, zoom, at });
  }

  /** @param {WheelEvent} event */
  #onWheel(event) {
    event.preventDefault();
    const at = { x: event.offsetX, y: event.offsetY };
    if (event.ctrlKey || event.metaKey) this.#move(0, 0, Math.exp(-event.deltaY / 300), at);
    else if (event.shiftKey) this.#move(-event.deltaY || -event.deltaX, 0, 1, at);
    else this.#move(-event.deltaX, -event.deltaY, 1, at);
  }

  /** @param {PointerEvent} event */
  #onDown(event) {
    if (event.button !== 0) return;
    this.#hideTip();
    let { clientX, clientY } = event, way = 0;
    const onMove = (/** @type {PointerEvent} */ moved) => {
      way += Math.abs(moved.clientX - clientX) + Math.abs(moved.clientY - clientY);
      if (way > 3) this.#move(moved.clientX - clientX, moved.clientY - clientY, 1, { x: 0, y: 0 });
      ({ clientX, clientY } = moved);
    };
    const onUp = (/** @type {PointerEvent} */ up) => {
      window.removeEventListener("pointermove", onMove);
      if (way > 3 || up.type === "pointercancel") return;
      const found = this.#boxAt(event);
      if (found >= 0) this.listeners.pick(found);
    };
    window.addEventListener("pointermove", onMove);
    window.addEventListener("pointerup", onUp, { once: true });
  }

  /** Returns the innermost box at a place of the window; −1 beside all. @param {{offsetX: number, offsetY: number}} event */
  #boxAt({ offsetX, offsetY }) {
    const { camera: { k, x, y } } = this, left = (offsetX - x) / k, top = (offsetY - y) / k;
    let found = -1;
    walk(this.root, { left, top, right: left, bottom: top }, ({ box }) => { found = box.node; return true; });
    return found;
  }

  /** @param {PointerEvent} event */
  #onHover(event) {
    const line = this.#lineAt(event), found = this.#boxAt(event);
    if (line !== this.hovered) { this.hovered = line; this.draw(); }
    const words = line ? this.listeners.describeLine(line) : found > 0 ? this.listeners.describe(found) : [];
    this.canvas.style.cursor = line || found > 0 ? "pointer" : "grab";
    if (!words.length) { this.#hideTip(); return; }
    this.tip.replaceChildren(...words.map((text, place) => element("div", { class: place ? "dim" : "mono" }, text)));
    this.tip.hidden = false;
    const x = Math.min(event.offsetX + 14, this.canvas.clientWidth - this.tip.offsetWidth - 6);
    const y = event.offsetY + 18 + this.tip.offsetHeight > this.canvas.clientHeight ? event.offsetY - this.tip.offsetHeight - 10 : event.offsetY + 18;
    this.tip.style.left = `${Math.max(x, 4)}px`;
    this.tip.style.top = `${Math.max(y, 4)}px`;
  }

  #hideTip() {
    this.tip.hidden = true;
    if (this.hovered) { this.hovered = null; this.draw(); }
  }

  /** Returns the line near a place of the window. @param {{offsetX: number, offsetY: number}} event @returns {Line | null} */
  #lineAt({ offsetX, offsetY }) {
    const { camera: { k, x, y } } = this, left = (offsetX - x) / k, top = (offsetY - y) / k, near = 4 / k;
    /** @type {Line | null} */
    let found = null;
    walk(this.root, { left, top, right: left, bottom: top }, (placed) => {
      found = null; // a box is above the lines around it
      for (const { line, points } of placed.box.routes) {
        if (isNear(points, left - placed.x, top - placed.y, near)) found = line;
      }
      return true;
    });
    return found;
  }
}

/** Returns where a picture may begin in the window. @param {number} start @param {number} size @param {number} room */
function inSight(start, size, room) { return room ? Math.min(Math.max(start, leastSeen - size), room - leastSeen) : start; }

/** @param {import("./layout.js").Point[]} points @param {number} x @param {number} y @param {number} near */
function isNear(points, x, y, near) {
  return points.slice(1).some((end, place) => {
    const start = points[place], w = end.x - start.x, h = end.y - start.y;
    const share = Math.min(Math.max(((x - start.x) * w + (y - start.y) * h) / (w * w + h * h || 1), 0), 1);
    return Math.hypot(x - start.x - share * w, y - start.y - share * h) < near;
  });
}

/** Returns what the kinds of evidence for an edge are called. @param {number} how */
export function evidence(how) { return [say("recorded"), say("same bytes"), say("same checksum"), say("same statistics"), say("graph of the compiler")][how] ?? ""; }
