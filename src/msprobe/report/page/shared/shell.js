// SPDX-License-Identifier: Apache-2.0
// Puts a page together of views: their places, tabs and keys; who draws when.

import { detailView, close } from "./detail.js";
import { byId, element, isNarrow, sayLabels } from "./dom.js";
import { folds, showFolds } from "./folds.js";
import { showHelp, startKeyboard } from "./keyboard.js";
import { startPaper } from "./paper.js";
import { say } from "./language.js";
import { sections } from "./sections.js";
import { placeBorders, sizePanes } from "./splitters.js";
import { change, declare, listen, state } from "./store.js";
import { startTheme, toggleTheme } from "./theme.js";
import { startUrl } from "./url.js";

/**
 * A part of the page. Each file in views/ exports one as `view`; it is left out where the data lack what it needs.
 *
 * @typedef {object} View
 * @property {string} name its word in the URL, and the id of its pane
 * @property {string} title what readers call it
 * @property {"head" | "strip" | "side" | "main" | "detail"} place one of several main views is shown at a time;
 *   of the views of details, the first that has something to show
 * @property {string[]} needs sections of the data
 * @property {Record<string, string>} [state] names in the URL, with their defaults
 * @property {string[]} uses names of the state that it draws
 * @property {(pane: HTMLElement) => void} start builds it, once
 * @property {() => void} render draws it: after the start and whenever something that it uses has changed
 * @property {string[]} [beside] of panes at the side: the main views that it is shown with; without it, all
 * @property {() => boolean} [shows] of details: whether it has something to show
 * @property {import("./keyboard.js").Keys} [keys] what keys do while it is shown
 */

/** @type {View[]} */
let views = [];

/** Shows the main view, in a window without room for all panes. */
export function showMain() { change({ pane: "main" }); }

/** Returns the name of the main view that is shown. */
export function mainView() {
  const names = views.filter(({ place }) => place === "main").map(({ name }) => name);
  return names.includes(state.view) ? state.view : names[0] ?? "";
}

/** @param {View} view */
function isActive({ place, name, beside }) { return place === "main" ? name === mainView() : beside?.includes(mainView()) ?? true; }

/** @type {import("./keyboard.js").Keys} */
const keys = {
  "t": ["light or dark", toggleTheme],
  "?": ["this list", showHelp],
  "Escape": ["back to the overview", close],
};

/** Shows the panes that the state names. */
function showPanes() {
  document.body.dataset.shows = state.pane;
  document.body.dataset.view = mainView();
  for (const view of views.filter(({ place }) => place === "main" || place === "side" || place === "detail")) {
    const isShown = isActive(view), tab = byId(`${view.name}-tab`);
    byId(view.name).hidden = !isShown;
    tab.hidden = !isShown && view.place !== "main";
    tab.setAttribute("aria-current", String(isShown && view.place === state.pane));
    tab.classList.toggle("shown", isShown);
  }
  placeBorders();
}

/** @param {View} view @returns {HTMLElement} */
function makePane(view) {
  if (view.place === "head" || view.place === "detail") return byId(view.place);
  const pane = element("section", {
    id: view.name, class: view.place === "strip" ? "strip" : "pane", "data-place": view.place, "aria-label": say(view.title),
  });
  if (view.place === "strip") byId("strips").append(pane);
  else byId("panes").insertBefore(pane, byId("detail"));
  return pane;
}

function makeTabs() {
  const tabs = byId("tabs");
  for (const place of ["detail", "main", "side"]) {
    const placed = views.filter((view) => view.place === place);
    if (placed.length > 1) tabs.classList.add("several");
    for (const { name, title } of placed) {
      const click = () => {
        if (place === "detail" && isNarrow()) close();
        else change({ pane: place, ...(place === "main" ? { view: name } : {}) });
      };
      tabs.append(element("button", {
        type: "button", id: `${name}-tab`, "data-pane": name, "data-place": place, click,
      }, say(title)));
    }
  }
}

/** Starts the page. @param {View[]} all in the order of their panes */
export function start(all) {
  const present = all.filter(({ needs }) => needs.every((name) => sections[name] !== undefined));
  const details = present.filter(({ place }) => place === "detail");
  views = present.filter(({ place }) => place !== "detail");
  if (details.length) views.push(detailView(details));
  declare({ view: mainView(), pane: details.length ? "detail" : "main", split: "", lang: "", ...folds });
  [...present, ...views].forEach((view) => declare(view.state ?? {}));
  startTheme();
  sayLabels();
  makeTabs();
  views.forEach((view) => view.start(makePane(view)));
  showPanes();
  views.forEach((view) => view.render());
  listen((changed) => {
    if (changed.has("view") || changed.has("pane")) showPanes();
    else if (changed.has("split")) sizePanes();
    if (changed.has("open")) showFolds();
    views.filter((view) => view.uses.some((name) => changed.has(name))).forEach((view) => view.render());
  });
  startUrl();
  startPaper();
  // The keys of the main view go before those of details.
  startKeyboard(() => Object.assign({}, ...views.filter(isActive).reverse().map((view) => view.keys), keys));
  byId("help-button").addEventListener("click", showHelp);
  byId("theme-button").addEventListener("click", toggleTheme);
}
