// SPDX-License-Identifier: Apache-2.0
// The selected series of all ranks and runs; a part of the steps by dragging.

import { ask, onGrowth, overview } from "../data/monitor.js";
import { drawSeries } from "../data/plots.js";
import { head } from "../shared/detail.js";
import { element, replace } from "../shared/dom.js";
import { say } from "../shared/language.js";
import { change, state } from "../shared/store.js";
import { onTheme } from "../shared/theme.js";

const box = element("div", { class: "series" });
/** @type {HTMLElement} */
let pane;
/** @type {import("../data/monitor.js").Series | null} */
let series = null;
let asked = "";

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "series", title: "Series", place: "detail", needs: ["monitor"], uses: ["at", "stream", "op", "log", "step"],
  shows: () => state.at !== "",
  start(made) {
    pane = made;
    new ResizeObserver(() => { if (state.at && box.isConnected) draw(); }).observe(pane);
    onTheme(draw);
    onGrowth(() => { asked = ""; if (state.at) view.render(); });
  },
  render() {
    const known = overview();
    const stream = state.stream || known.stream;
    const { ops, op } = known.streams.find((/** @type {any} */ one) => one.name === stream) ?? known.streams[0];
    load({ stream, name: state.at, op: ops.includes(state.op) ? state.op : op });
  },
};

/** @param {Record<string, string>} parameters */
async function load(parameters) {
  const wanted = JSON.stringify(parameters);
  replace(pane, ...head(state.at), element("p", { class: "dim" }, `${parameters.stream} ${parameters.op}`), box);
  if (wanted !== asked) {
    asked = wanted;
    const answer = await ask("series", parameters);
    if (wanted !== asked) return;
    series = answer;
  }
  draw();
}

function draw() {
  if (!state.at || !box.isConnected) return;
  if (!series?.lines.length) {
    replace(box, element("p", { class: "none" }, say("No values of this series here.")));
    return;
  }
  drawSeries(box, series, {
    height: 300, isLog: state.log === "1", step: state.step ? Number(state.step) : null,
    pick: (step) => change({ step: String(step) }),
  });
}
