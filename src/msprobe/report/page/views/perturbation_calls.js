// SPDX-License-Identifier: Apache-2.0
// The perturbed calls of a run, the one that matters most first. The other side of this is
// checks/perturbation_results.py.

import { element, replace, span, table } from "../shared/dom.js";
import { digits } from "../shared/format.js";
import { matcher, searchBox } from "../shared/search.js";
import { number, sections } from "../shared/sections.js";

const colours = /** @type {Record<string, string>} */ ({ error: "introduced", warning: "amplified", note: "inherited" });

/** @type {any} */
const perturbation = sections.perturbation;
const rows = element("div"), search = searchBox({
  id: "search", name: "q", placeholder: "Search calls, modules, sources  ( / )",
  enter: () => search.blur(), escape: () => search.blur(),
});

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "calls", title: "Calls", place: "main", needs: ["perturbation"], state: { q: "" }, uses: ["q"],
  start(pane) {
    pane.classList.add("perturbation");
    replace(pane, element("div", { class: "filters" }, search), rows);
  },
  render() {
    const fits = matcher("q");
    const shown = perturbation.calls.filter((/** @type {any} */ each) => (
      fits(() => `${each.api_name} ${each.module} ${each.source} ${each.severity}`.toLowerCase())));
    const lines = shown.map((/** @type {any} */ each) => element("tr", {},
      element("td", { class: "mono" }, each.api_name),
      element("td", { class: "right" }, digits(number(each.amplification))),
      element("td", {}, span(colours[each.severity] ?? "dim", each.severity), ` ${each.detail}`),
      element("td", { class: "right" }, String(each.step)),
      element("td", { class: "mono" }, each.module),
      element("td", { class: "mono" }, each.source)));
    replace(rows, table(["call", `|${perturbation.measure}`, "finding", "|step", "module", "source"], lines));
  },
  keys: { "/": ["search", () => { search.focus(); search.select(); }] },
};
