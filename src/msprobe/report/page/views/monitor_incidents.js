// SPDX-License-Identifier: Apache-2.0
// Incidents of the run, and where two runs part; each leads to its series.

import { onGrowth, overview } from "../data/monitor.js";
import { element, facts, joined, link, pill, replace, span, table, title } from "../shared/dom.js";
import { digits, grouped, plural } from "../shared/format.js";
import { say } from "../shared/language.js";
import { number } from "../shared/sections.js";
import { change, state } from "../shared/store.js";

/** @type {HTMLElement} */
let pane;

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "incidents", title: "Incidents", place: "detail", needs: ["monitor"], uses: [],
  start(made) {
    pane = made;
    onGrowth(() => { if (!state.at) view.render(); });
  },
  render() {
    const { runs, incidents, parting, finding, failed } = overview();
    const none = failed || (finding ? "Incidents are being looked for …" : "No incident");
    replace(pane,
      ...runs.map(runFacts),
      ...(parting ? [title("Where the runs part"), ...partingParts(parting)] : []),
      title(incidents.length ? plural(incidents.length, "incident") : none),
      ...incidents.map(incidentCard));
  },
};

/** @param {any} run @param {number} place @param {any[]} all */
function runFacts(run, place, all) {
  const label = all.length > 1 ? ["target", "reference"][place] : "run";
  const steps = run.count ? say("{} to {}, {}", grouped(run.first), grouped(run.last), plural(run.count, "step")) : say("none");
  return facts([[label, span("mono", run.path)], ["steps", steps], ["ranks", run.ranks.join(", ")]]);
}

/** @param {any} parting */
function partingParts(parting) {
  if (parting.equal) return [element("p", {}, say("The runs are equal in every value."))];
  const line = (/** @type {string} */ words, /** @type {any} */ one, /** @type {string} */ key) => (one
    ? element("p", {}, say(`${words} step {}: `, grouped(one[key])), link(joined(one.stream, one.name, one.op), () => go(one, one[key])))
    : null);
  const hasRanks = overview().runs[0].ranks.length > 1;
  const rows = parting.series.slice(0, 12).map((/** @type {any} */ one) => element("tr", { class: "pick", click: () => go(one, one.first_apart ?? one.first_different) },
    element("td", { class: "mono" }, `${one.stream} ${one.name}`, hasRanks ? span("dim", ` ${say("rank {}", one.rank)}`) : null),
    element("td", { class: "right" }, one.first_apart === null ? "–" : grouped(one.first_apart)),
    element("td", { class: "right" }, digits(number(one.largest)))));
  return [
    line("differ from", parting.first_different, "first_different"),
    line("apart from", parting.first_apart, "first_apart"),
    table(["series", "|apart", "|largest"], rows),
  ];
}

/** @param {any} incident */
function incidentCard(incident) {
  const { lead } = incident;
  const span_ = incident.start === incident.last ? say("step {}", grouped(incident.start)) : say("steps {} to {}", grouped(incident.start), grouped(incident.last));
  return element("div", { class: "incident" },
    pill(incident.severity, incident.cause),
    element("p", {}, link(say("{}: {}", span_, say(incident.sentence)), () => go(lead, incident.start))),
    element("p", { class: "dim" }, joined(say("{} series", incident.series),
      incident.ranks.length > 1 ? say("ranks {}", incident.ranks.join(", ")) : "", lead.deviations ? say("{} deviations", digits(number(lead.deviations))) : "")));
}

/** Shows a series at a step. @param {any} one @param {number} step */
function go(one, step) {
  const { streams } = overview();
  const isStream = streams.some((/** @type {any} */ each) => each.name === one.stream);
  if (isStream) change({ stream: one.stream, op: one.op, rank: String(one.rank), step: String(step), at: one.name, axis: "layer" });
  else change({ step: String(step) });
}
