// SPDX-License-Identifier: Apache-2.0
// A tree to fold and to walk through with the arrow keys.

import { byId, element, replace } from "./dom.js";

/** @typedef {{children: any[], isOpen: boolean}} Foldable */

/**
 * @template {Foldable} Item
 * @typedef {object} TreeOptions
 * @property {string} id
 * @property {string} label for readers who hear the page
 * @property {Item} root
 * @property {(item: Item) => {attributes: Record<string, any>, children: Node[]}} draw
 * @property {(item: Item) => void} pick
 * @property {() => void} folded called after an item was opened or closed
 */

/** @template {Foldable} Item */
export class FoldableTree {
  /** @type {{item: Item, depth: number}[]} */
  #visible = [];
  #at = 0;

  /** @param {TreeOptions<Item>} options */
  constructor(options) {
    this.options = options;
    /** To be put into the document. */
    this.box = element("div", {
      id: options.id, class: "tree", role: "tree", "aria-label": options.label, tabindex: "0",
      keydown: (/** @type {KeyboardEvent} */ event) => this.#onKey(event),
    });
  }

  render() {
    this.#visible = [];
    /** @param {Item} item @param {number} depth */
    const collect = (item, depth) => {
      this.#visible.push({ item, depth });
      if (item.isOpen) item.children.forEach((child) => collect(child, depth + 1));
    };
    collect(this.options.root, 0);
    this.#at = Math.min(this.#at, this.#visible.length - 1);
    replace(this.box, ...this.#visible.map((entry, place) => this.#line(entry, place)));
  }

  /** @param {{item: Item, depth: number}} entry @param {number} place */
  #line({ item, depth }, place) {
    const { attributes, children } = this.options.draw(item);
    const twist = element("span", { class: "twist" }, item.children.length ? (item.isOpen ? "▾" : "▸") : "");
    return element("div", {
      ...attributes, class: `node ${attributes.class ?? ""} ${place === this.#at ? "at" : ""}`, role: "treeitem",
      id: `${this.options.id}-${place}`, style: `padding-left:${4 + 13 * depth}px`, "aria-level": depth + 1,
      "aria-expanded": item.children.length ? String(item.isOpen) : null,
      click: (/** @type {Event} */ event) => {
        this.#at = place;
        if (event.target === twist && item.children.length) this.#toggle(item);
        else this.options.pick(item);
      },
    }, twist, ...children);
  }

  /** @param {Item} item */
  #toggle(item) {
    item.isOpen = !item.isOpen;
    this.options.folded();
    this.render();
  }

  /** Returns the place of the item above the one at hand. */
  #parent() {
    const { depth } = this.#visible[this.#at];
    return Math.max(this.#visible.findLastIndex((each, place) => place < this.#at && each.depth < depth), 0);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const { item } = this.#visible[this.#at];
    const last = this.#visible.length - 1;
    const canOpen = item.children.length > 0 && !item.isOpen, canClose = item.children.length > 0 && item.isOpen;
    /** @type {Record<string, () => void>} */
    const moves = {
      ArrowDown: () => { this.#at = Math.min(this.#at + 1, last); },
      ArrowUp: () => { this.#at = Math.max(this.#at - 1, 0); },
      ArrowRight: () => { if (canOpen) item.isOpen = true; else moves.ArrowDown(); },
      ArrowLeft: () => { if (canClose) item.isOpen = false; else this.#at = this.#parent(); },
      Home: () => { this.#at = 0; },
      End: () => { this.#at = last; },
      Enter: () => this.options.pick(item),
      " ": () => this.options.pick(item),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    const wasOpen = item.isOpen;
    moves[event.key]();
    if (item.isOpen !== wasOpen) this.options.folded();
    this.render();
    this.box.setAttribute("aria-activedescendant", `${this.options.id}-${this.#at}`);
    byId(`${this.options.id}-${this.#at}`).scrollIntoView({ block: "nearest" });
  }
}
