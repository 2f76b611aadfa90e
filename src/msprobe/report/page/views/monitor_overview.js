// SPDX-License-Identifier: Apache-2.0
// Loss, global norms and learning rate over the steps, with the incidents.

import { followGrowth, onGrowth, overview } from "../data/monitor.js";
import { drawSeries } from "../data/plots.js";
import { element, replace } from "../shared/dom.js";
import { change, state } from "../shared/store.js";
import { onTheme } from "../shared/theme.js";

const most = 4;
const box = element("div", { class: "scalars" });

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "scalars", title: "Loss, norms, learning rate", place: "strip", needs: ["monitor"], uses: ["step"],
  start(pane) {
    replace(pane, box);
    new ResizeObserver(draw).observe(pane);
    onTheme(draw);
    onGrowth(draw);
    followGrowth();
  },
  render: draw,
};

function draw() {
  const shown = overview().scalars.slice(0, most);
  const boxes = shown.map(() => element("div", { class: "scalar" }));
  replace(box, ...boxes);
  shown.forEach((/** @type {import("../data/monitor.js").Series} */ series, /** @type {number} */ place) => {
    drawSeries(boxes[place], series, {
      height: 150, isLog: false, title: series.name, step: state.step ? Number(state.step) : null,
      pick: (step) => change({ step: String(step) }),
    });
  });
}
