// SPDX-License-Identifier: Apache-2.0
// The headline of a graph: where the first difference is, and the choice of a step and rank.

import { cells, currentRun, graphOf, hasReference, nodeId, whole } from "../data/graph.js";
import { placeName } from "../data/words.js";
import { byId, command, element, joined, link, replace, span } from "../shared/dom.js";
import { grouped } from "../shared/format.js";
import { say } from "../shared/language.js";
import { change } from "../shared/store.js";

const select = element("select", { id: "graph-run", "aria-label": say("Step and rank"), change: () => change({ run: select.value, fold: "", at: "", cone: "" }) });
const counts = element("p", { class: "dim", id: "graph-counts" });

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "graph_head", title: say("Answer"), place: "head", needs: ["graph"], uses: ["run"],

  start(pane) {
    const { headline, target, reference } = whole;
    const show = () => change({ run: `${headline.step}/${headline.rank}`, at: headline.node < 0 ? "" : nodeId(headline.side, headline.node), part: "" });
    const sentence = headline ? link(headline.sentence, show, { class: "link headline" }) : span("", hasReference ? say("no difference was found") : whole.title);
    const isEqual = !headline || headline.class === "equal";
    const badge = !hasReference ? (headline ? span("badge", say("not finite")) : null) : span(`badge ${isEqual ? "equal" : ""}`, say(isEqual ? "equal" : "different"));
    const sides = reference ? `${target}  ${say("against")}  ${reference}` : target;
    replace(pane, element("h1", {}, badge, sentence), element("p", { class: "dim", id: "sides" }, sides), counts, headline?.next?.length ? nextSteps(headline.next) : null);
    if (cells.length < 2) return;
    cells.forEach((/** @type {any} */ { step, rank }) => select.append(element("option", { value: `${step}/${rank}` }, placeName(step, String(rank)))));
    byId("tools").prepend(select);
  },

  render() {
    const run = currentRun(), graph = graphOf("target", run) ?? graphOf("reference", run);
    const cell = cells.find((/** @type {any} */ each) => `${each.step}/${each.rank}` === run);
    select.value = run;
    const { introduced = 0, differs = 0, unmatched = 0, halves = 0 } = cell?.counts ?? {};
    counts.textContent = joined(graph ? say("{} nodes", grouped(graph.count - 1)) : "",
      hasReference ? say("{} of {} calls differ", grouped(differs), grouped(halves)) : "",
      hasReference && introduced ? say("{} introduced", grouped(introduced)) : "",
      hasReference && unmatched ? say("{} without a partner", grouped(unmatched)) : "", whole.mode);
    document.title = whole.title || document.title;
  },
};

/** @param {string[]} steps */
function nextSteps(steps) {
  const shown = steps.map((text) => (text.startsWith("msprobe ") ? command(text) : span("", say(text))));
  return element("details", { id: "next" }, element("summary", { class: "dim" }, say("what to do next")), element("ol", { class: "plain-list" }, ...shown.map((step) => element("li", {}, step))));
}
