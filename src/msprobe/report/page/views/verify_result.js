// SPDX-License-Identifier: Apache-2.0
// One result in full: its verdict, the element that decided, and how many elements are how far off.

import { operators, results, selected, verdictOf, verdicts, verify } from "../data/verify.js";
import { placeName } from "../data/words.js";
import { head, open } from "../shared/detail.js";
import { command, element, facts, joined, link, pill, replace, span, table, title } from "../shared/dom.js";
import { digits, exact, grouped, plural } from "../shared/format.js";
import { say } from "../shared/language.js";
import { shape } from "../shared/svg.js";

/** @typedef {import("../data/verify.js").Result} Result */

const size = { width: 520, height: 120, bottom: 16 };
/** @type {HTMLElement} */
let pane;

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "result", title: "Result", place: "detail", needs: ["verify", "results"], uses: [],
  start(made) { pane = made; },
  render() {
    const result = selected();
    replace(pane, ...(result ? resultParts(result) : overviewParts()));
  },
};

function overviewParts() {
  const worst = results.filter((each) => each.ratio !== null).sort((a, b) => (b.ratio ?? 0) - (a.ratio ?? 0)).slice(0, 10);
  return [
    title("Verdicts"),
    facts(Object.entries(verify.verdicts).map(([word, count]) => [
      span(verdicts[word][0], say(word)), `${grouped(/** @type {number} */ (count))} – ${say(verdicts[word][1])}`])),
    title("Largest errors, over allowed"),
    table(["result", "|over allowed", "|ulp"], worst.map((each) => element("tr", { class: "pick", click: () => open(each.id) },
      element("td", { class: "mono" }, link(`${each.record} ${each.slot}`, () => open(each.id))),
      element("td", { class: "right" }, digits(each.ratio)), element("td", { class: "right" }, digits(each.ulps))))),
    element("p", { class: "dim" }, joined(plural(operators().length, "operator"), plural(verify.results, "result"))),
  ];
}

/** @param {Result} result */
function resultParts(result) {
  const word = verdictOf(result), [group, meaning] = verdicts[word];
  const other = (/** @type {number} */ by) => results[Number(result.id) + by];
  const to = (/** @type {string} */ text, /** @type {Result | undefined} */ found) => (
    found ? link(text, () => open(found.id), { title: found.record }) : null);
  return [
    ...head(result.record, to("before", other(-1)), to("after", other(1))),
    element("div", {}, pill(word, meaning), span("dim", say(meaning))),
    result.remark || result.reason
      ? element("p", { class: `why ${group}` }, result.reason && result.remark ? say("{}: {}", say(result.reason), say(result.remark)) : say(result.reason ?? result.remark ?? "")) : null,
    facts([
      ["result", span("mono", result.slot)],
      ["type", span("mono", `${result.dtype}${result.shape}`)],
      ["source", result.source && span("mono", result.source)],
      ["run", verify.places > 1 ? placeName(result.step, result.rank) : ""],
      ["computed again in", result.by],
      ["data", result.generated ? say("generated from statistics: the result judged is that of a new run") : ""],
    ]),
    ...(result.ratio === null ? [] : judgedParts(result)),
    title("A script that shows it"),
    command(`msprobe op-script ${verify.dump} ${result.record.replace(/\.backward(\.pass\d+)?$/, ".forward")}`),
  ];
}

/** @param {Result} result */
function judgedParts(result) {
  return [
    title("Its own error"),
    facts([
      ["over allowed", digits(result.ratio)],
      ["in units in the last place", digits(result.ulps)],
      ["absolute", digits(result.error)],
      ["relative to its scale", digits(result.relative)],
    ]),
    title("The element that decided"),
    facts([
      ["place in C order", result.index === null ? "" : grouped(result.index)],
      ["recorded", result.found], ["in float64", result.expected], ["allowed error", exact(result.allowed)],
    ]),
    ...(result.histogram?.some(Boolean) ? histogram(result.histogram) : []),
  ];
}

/** @param {number[]} counts elements by error in units in the last place: up to 1/2, 1, 2, 4 … */
function histogram(counts) {
  const top = Math.max(...counts), floor = size.height - size.bottom, wide = size.width / counts.length;
  const total = counts.reduce((sum, count) => sum + count, 0);
  const svg = shape("svg", {
    class: "ulps-plot", viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": say("Elements by error in units in the last place"),
  });
  counts.forEach((count, place) => {
    const tall = count ? Math.max((floor - 4) * Math.sqrt(count / top), 1.5) : 0;
    const edge = place ? 2 ** (place - 1) : 0.5;
    const bar = shape("rect", { x: place * wide, y: floor - tall, width: wide - 1, height: tall });
    const range = place === counts.length - 1 ? say("more than {} ulp", grouped(edge / 2)) : say("up to {} ulp", grouped(edge));
    bar.append(shape("title", {}, say("{}: {}", range, say("{} of {}", grouped(count), grouped(total)))));
    svg.append(bar);
    if (place % 3 === 0) svg.append(shape("text", { x: place * wide, y: size.height - 3 }, digits(edge)));
  });
  return [title("Elements by error in ulp (square root scale)"), svg];
}
