// SPDX-License-Identifier: Apache-2.0
// The verdict of a comparison in one sentence, what to do next, and the choice of a step and rank.

import { say } from "../shared/language.js";
import { operationAt, operations, severalRuns, summary } from "../data/comparison.js";
import { placeName } from "../data/words.js";
import { open } from "../shared/detail.js";
import { byId, command, element, joined, link, replace, span } from "../shared/dom.js";
import { sections } from "../shared/sections.js";
import { change, state } from "../shared/store.js";

const select = element("select", {
  id: "comparison", "aria-label": say("Step and rank"), change: () => change({ run: select.value }),
});

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "verdict", title: say("Answer"), place: "head", needs: ["summary", "answer"], state: { run: "" }, uses: ["run"],

  start(pane) {
    const { outcome, confidence, sentence, counts, steps } = sections.answer;
    const { class: cause, where } = summary.verdict ?? {};
    const { record, step, rank } = where ?? {};
    const culprit = operations.find((each) => each.name === record && each.step === step && each.rank === String(rank)) ?? operationAt(summary.introduced[0]);
    const sides = joined(`${summary.target}  ${say("against")}  ${summary.reference}`, say(counts));
    const isHarmless = confidence === "proved" && (cause === "rounding" || cause === "precision");
    const badge = span(`badge ${isHarmless ? "harmless" : outcome.split(/\W/)[0]}`, say(outcome));
    // The badge lies in the link: a long link beside it would begin on the next line.
    const headline = culprit ? link(sentence, () => open(culprit.id), { class: "link headline" }) : element("span", {}, say(sentence));
    headline.prepend(badge);
    replace(pane, element("h1", {}, headline),
      element("p", { id: "sides", class: "dim" }, sides), steps.length ? nextSteps(steps) : null);
    if (!severalRuns) return;
    select.append(element("option", { value: "" }, say("all steps and ranks")));
    for (const { step, rank } of summary.comparisons) {
      select.append(element("option", { value: `${step}/${rank}` }, placeName(step, String(rank))));
    }
    byId("tools").prepend(select);
  },

  render() { select.value = state.run; },
};

/** @param {string[]} steps */
function nextSteps(steps) {
  const shown = steps.map((text) => (text.startsWith("msprobe ") ? command(text) : element("span", {}, say(text))));
  return element("div", { id: "next", role: "group", "aria-label": say("what to do next") },
    element("b", {}, say("Next")), element("ol", {}, ...shown.map((step) => element("li", {}, step))));
}
