// SPDX-License-Identifier: Apache-2.0
// The way in where there are many ranks and steps: a heat map of them, and one of layers and ranks. A click opens the graph.

import { currentRun, hasReference, overflows, severities, whole } from "../data/graph.js";
import { element, replace, title } from "../shared/dom.js";
import { grouped } from "../shared/format.js";
import { say } from "../shared/language.js";
import { change } from "../shared/store.js";

/** @type {HTMLElement} */
let pane;

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "graph_runs", title: say("Ranks and steps"), place: "main", needs: ["graph", "graph_several"], uses: ["run"],
  start(made) { pane = made; },
  render() {
    replace(pane, element("div", { class: "heat-maps" }, title(say("Ranks and steps")), runs(), ...(whole.layers ? [title(say("Layers and ranks")), layers()] : [])));
  },
};

/** @param {number} severity @param {number} overflow @param {string} text @param {string} words @param {() => void} click @param {boolean} isPicked */
function cell(severity, overflow, text, words, click, isPicked) {
  const name = hasReference ? `severity-${severities[severity]}` : `overflow-${overflows[overflow]}`;
  return element("td", {}, element("button", { type: "button", class: `heat ${name} ${isPicked ? "picked" : ""}`, title: words, "aria-label": words, click }, text));
}

/** @param {string} corner @param {string[]} columns @param {[string, any[]][]} rows */
function grid(corner, columns, rows) {
  return element("div", { class: "scroll" }, element("table", { class: "heat-map" },
    element("thead", {}, element("tr", {}, element("th", {}, corner), ...columns.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows.map(([name, cells]) => element("tr", {}, element("th", { scope: "row" }, name), ...cells)))));
}

function runs() {
  /** @type {any[]} */
  const cells = whole.cells;
  const steps = [...new Set(cells.map(({ step }) => step))], ranks = [...new Set(cells.map(({ rank }) => String(rank)))];
  const byRun = new Map(cells.map((each) => [`${each.step}/${each.rank}`, each]));
  return grid(say("rank"), steps.map((step) => say("step {}", step)), ranks.map((rank) => [rank, steps.map((step) => {
    const run = `${step}/${rank}`, found = byRun.get(run);
    if (!found) return element("td", {});
    const { counts, severity = 0, overflow = 0 } = found;
    const words = say("step {}, rank {}: {}", step, rank, hasReference ? `${say(severities[severity])}, ${say("{} of {} calls differ", grouped(counts.differs), grouped(counts.halves))}` : say(overflows[overflow]));
    return cell(severity, overflow, hasReference && counts?.introduced ? grouped(counts.introduced) : "", words, () => open(run), run === currentRun());
  })]));
}

/** @param {string} run */
function open(run) { change({ run, at: "", fold: "", cone: "", view: "graph", pane: "main" }); }

function layers() {
  const { labels, rank: ranks } = whole.layers ?? { labels: [], rank: [] };
  return grid(say("layer"), ranks.map((/** @type {any} */ { step, rank }) => `${step}/${rank}`), labels.map((/** @type {string} */ label, /** @type {number} */ place) => [label,
    ranks.map((/** @type {any} */ { step, rank, severity }) => cell(severity[place] ?? 0, 0, "", say("{}, step {}, rank {}: {}", label, step, rank, say(severities[severity[place] ?? 0])),
      () => change({ run: `${step}/${rank}`, at: "", fold: "", find: label, view: "graph", pane: "main" }), false))]));
}
