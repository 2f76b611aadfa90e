// SPDX-License-Identifier: Apache-2.0
// The menu of a box: a click with the right button, or the key m.

import { element, replace } from "../shared/dom.js";

const menu = element("div", { class: "graph-menu", role: "menu", hidden: true });

/** @typedef {[text: string, act: () => void]} Entry */

/** Opens a menu at a place of the window. @param {Entry[]} entries @param {number} x @param {number} y */
export function openMenu(entries, x, y) {
  const back = document.activeElement;
  const close = () => {
    menu.hidden = true;
    document.removeEventListener("pointerdown", onDown, true);
    if (back instanceof HTMLElement) back.focus({ preventScroll: true });
  };
  const onDown = (/** @type {Event} */ event) => { if (!menu.contains(event.target)) close(); };
  replace(menu, ...entries.map(([text, act]) => element("button", { type: "button", role: "menuitem", click: () => { close(); act(); } }, text)));
  menu.onkeydown = (/** @type {KeyboardEvent} */ event) => {
    const items = [...menu.children], place = items.indexOf(document.activeElement);
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) items[(place + by + items.length) % items.length].focus();
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  if (!menu.isConnected) document.body.append(menu);
  menu.hidden = false;
  menu.style.left = `${Math.min(x, window.innerWidth - menu.offsetWidth - 8)}px`;
  menu.style.top = `${Math.min(y, window.innerHeight - menu.offsetHeight - 8)}px`;
  menu.firstElementChild?.focus();
  document.addEventListener("pointerdown", onDown, true);
}
