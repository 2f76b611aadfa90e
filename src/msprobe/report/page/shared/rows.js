// SPDX-License-Identifier: Apache-2.0
// A list of which only the lines in sight exist, so that tens of thousands cost nothing.

import { element, replace } from "./dom.js";
import { isPaper, onPaper } from "./paper.js";

// Lines that are printed at most: some ten pages.
const mostPrinted = 400;
const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

/**
 * @template Item
 * @typedef {object} RowOptions
 * @property {string} name of an item
 * @property {string} label for readers who hear the page
 * @property {number} height of a line
 * @property {string} empty what to say where there is nothing
 * @property {(item: Item) => {attributes: Record<string, any>, children: Node[]}} draw
 * @property {(item: Item, isMove: boolean) => void} open
 */

/** @template Item */
export class RowList {
  /** @type {Item[]} */
  items = [];
  #at = -1;
  #drawn = "";
  #isPlaced = false; // has a size: nothing is drawn before

  /** @param {RowOptions<Item>} options */
  constructor(options) {
    this.options = options;
    this.space = element("div");
    /** To be put into the document. */
    this.box = element("div", {
      id: `${options.name}s`, class: "rows", role: "listbox", "aria-label": options.label, tabindex: "0",
    }, this.space);
    this.box.addEventListener("scroll", () => this.#update(), { passive: true });
    document.addEventListener("keydown", (event) => this.#onKey(event));
    onPaper(() => this.#redraw());
    new ResizeObserver(() => {
      if (!this.#isPlaced) this.#scrollToSelected();
      this.#isPlaced = true;
      this.#redraw();
    }).observe(this.box);
  }

  /** Shows items, one of them selected. @param {Item[]} items @param {Item | undefined} selected */
  show(items, selected) {
    const isSame = items === this.items;
    this.items = items;
    this.#at = selected === undefined ? -1 : items.indexOf(selected);
    this.space.style.height = `${items.length * this.options.height}px`;
    if (!this.#isPlaced) return;
    if (isSame) this.#reveal();
    else this.#scrollToSelected();
    this.#redraw();
  }

  /** Opens the item so many lines below the selected one. @param {number} by */
  move(by) {
    const { items } = this;
    if (items.length) this.options.open(items[Math.min(Math.max(this.#at + by, 0), items.length - 1)], true);
  }

  #redraw() {
    this.#drawn = "";
    this.#update();
  }

  #update() {
    const { box, items, options } = this;
    if (isPaper()) { this.#print(); return; }
    const first = Math.max(Math.floor(box.scrollTop / options.height) - 6, 0);
    const last = Math.min(Math.ceil((box.scrollTop + (box.clientHeight || 800)) / options.height) + 6, items.length);
    const wanted = `${first}-${last}-${this.#at}`;
    if (wanted === this.#drawn) return;
    this.#drawn = wanted;
    const lines = items.slice(first, last).map((item, place) => this.#line(item, first + place));
    replace(this.space, ...lines, items.length ? null : element("p", { class: "none" }, options.empty));
    if (this.#at >= 0) box.setAttribute("aria-activedescendant", `${options.name}-${this.#at}`);
    else box.removeAttribute("aria-activedescendant");
  }

  // On paper all lines exist, one below the other.
  #print() {
    const { items, options } = this;
    const lines = items.slice(0, mostPrinted).map((item, place) => this.#line(item, place));
    const left = items.length - lines.length;
    const rest = left ? element("p", { class: "none" }, `and ${left} more`) : null;
    replace(this.space, ...lines, rest, items.length ? null : element("p", { class: "none" }, options.empty));
  }

  /** @param {Item} item @param {number} place */
  #line(item, place) {
    const { draw, height, name, open } = this.options;
    const { attributes, children } = draw(item);
    return element("div", {
      ...attributes, id: `${name}-${place}`, role: "option", style: `top:${place * height}px;height:${height}px`,
      "aria-selected": String(place === this.#at), "aria-posinset": place + 1, "aria-setsize": this.items.length,
      click: () => open(item, false),
    }, ...children);
  }

  #scrollToSelected() { this.box.scrollTop = Math.max(this.#at - 2, 0) * this.options.height; }

  #reveal() {
    const { box, options: { height } } = this;
    const top = this.#at * height;
    if (top < 0) return;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + height > box.scrollTop + box.clientHeight) box.scrollTop = top + height - box.clientHeight;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const by = moves[/** @type {keyof typeof moves} */ (event.key)];
    if (!by || !this.box.clientHeight || (event.target !== this.box && event.target !== document.body)) return;
    event.preventDefault();
    this.move(by);
  }
}
