// SPDX-License-Identifier: Apache-2.0
// One node of the graph in full: its verdict, the values of both sides, call stack, group and partners.

import { findings, fullName, graphOf, hasReference, kind, nodeId, otherSide, overflows, partner, selectedNode, severities, whole } from "../data/graph.js";
import { title } from "../graph/scene.js";
import { head } from "../shared/detail.js";
import { command, element, facts, isNarrow, items, joined, link, pill, replace, span, table, title as heading } from "../shared/dom.js";
import { folded } from "../shared/folds.js";
import { digits, exact, grouped } from "../shared/format.js";
import { say } from "../shared/language.js";
import { number, sections } from "../shared/sections.js";
import { mainView } from "../shared/shell.js";
import { change, state } from "../shared/store.js";

/** @typedef {import("../data/graph.js").GraphNode} GraphNode */

/** @type {HTMLElement} */
let pane;
let drawnFor = "";

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "graph_node", title: say("Node"), place: "detail", needs: ["graph"], uses: ["run", "at", "pairs"],
  shows: () => !sections.operations || mainView().startsWith("graph"),
  start(made) { pane = made; },
  render() {
    const selected = selectedNode();
    drawnFor = state.at;
    if (!selected) { overview(); return; }
    const { graph, side, node } = selected, row = graph.node(node);
    if (!graph.isKnown(node)) { void graph.reach(node).then(() => { if (drawnFor === state.at) view.render(); }); return; }
    const detail = graph.detail(node);
    if (detail instanceof Promise) {
      replace(pane, ...top(row, side), element("p", { class: "dim" }, say("loading …")));
      detail.then((found) => { if (drawnFor === state.at) show(row, side, found); }, (error) => replace(pane, ...top(row, side), element("p", {}, String(error))));
    } else show(row, side, detail);
  },
};

// Nothing is selected: findings, one line each.
function overview() {
  const ids = findings();
  const lines = ids.slice(0, 200).map((id) => {
    const found = selectedNode(id);
    const culprit = whole.culprits.find((/** @type {any} */ each) => nodeId(each.side, each.node) === id);
    if (!found?.graph.isSeen(found.node)) return element("li", {}, link(culprit?.reason ?? id, () => change({ at: id })));
    const row = found.graph.node(found.node);
    return element("li", {}, link(fullName(row) || title(row), () => change({ at: id }), { class: "link mono" }), " ", span("dim", joined(row.class, say(culprit?.half ?? ""), say(row.source))),
      culprit?.reason ? element("div", { class: "dim" }, say(culprit.reason)) : null);
  });
  const notes = (graphOf("target")?.notes ?? []).concat(graphOf("reference")?.notes ?? []);
  replace(pane, heading(hasReference ? say("Where differences begin, in order of execution") : say("Where NaN and Inf begin, in order of execution")),
    lines.length ? element("ol", { class: "plain-list", id: "findings" }, ...lines) : element("p", { class: "dim" }, say("nothing was found")),
    ids.length > 200 ? element("p", { class: "dim" }, say("and {} more", grouped(ids.length - 200))) : null,
    notes.length ? heading(say("Notes")) : null, notes.length ? items(notes) : null, folded("build", say("build another graph"), buildForm()));
}

// The page runs nothing: it writes the command, and its reader copies it.
function buildForm() {
  const line = element("div", {});
  const box = (/** @type {string} */ label, /** @type {string} */ value) => element("input", { "aria-label": label, placeholder: label, value, input: () => show() });
  const target = box(say("target"), whole.target), reference = box(say("reference"), whole.reference ?? "");
  const ticks = [["-oc", say("NaN, Inf and overflow")], ["-f", say("align all calls")], ["--serve", say("from a local server")]].map(([option, text]) => (
    { option, text, tick: element("input", { type: "checkbox", change: () => show() }) }));
  const quoted = (/** @type {string} */ path) => (/^[\w./:@%+=-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`);
  const show = () => {
    const paths = [target.value, reference.value].filter(Boolean).map(quoted);
    replace(line, command(["msprobe graph", ...paths, ...ticks.filter(({ tick }) => tick.checked).map(({ option }) => option)].join(" ")));
  };
  show();
  return element("div", { class: "graph-build" }, target, reference, ...ticks.map(({ text, tick }) => element("label", {}, tick, ` ${text}`)), line);
}

/** @param {GraphNode} row @param {import("../data/graph.js").Side} side */
function top(row, side) {
  const pair = partner(side, row.id), graph = graphOf(side);
  const around = graph?.pathOf(row.id).slice(1, -1) ?? [];
  const crumbs = around.slice(-4).map((outer) => link(title(/** @type {any} */ (graph).node(outer)), () => change({ at: nodeId(side, outer), part: "" })));
  const pills = [["forward", row.status, row.origin, row.severity], ["backward", row.status_backward, row.origin_backward, row.severity_backward]]
    .filter(([, status]) => status).map(([half, status, origin]) => pill(`${origin || status}`, `${half}: ${status}`));
  return [
    ...head(fullName(row) || title(row), ...crumbs,
      sections.operations ? link(say("in the list"), () => change({ view: "list", pane: isNarrow() ? "detail" : "main" })) : null,
      pair >= 0 ? link(`${say("partner")} →`, () => change({ at: nodeId(otherSide(side), pair), part: "" })) : null),
    element("p", { class: "dim" }, joined(row.class, hasReference ? say(side) : "", say(row.source), row.micro ? say("micro step {}", row.micro) : "")),
    element("div", {}, ...pills, row.overflow ? pill(overflows[row.overflow], say("overflow level")) : null),
  ];
}

/** @param {GraphNode} row @param {import("../data/graph.js").Side} side @param {any} detail */
function show(row, side, detail) {
  const reasons = whole.culprits.filter((/** @type {any} */ each) => each.side === side && each.node === row.id).map((/** @type {any} */ each) => each.reason);
  replace(pane, ...top(row, side), ...reasons.map((/** @type {string} */ reason) => element("p", { class: "why introduced" }, say(reason))), summary(row),
    ...(detail?.halves ?? []).flatMap((/** @type {any} */ half) => halfTable(half)),
    detail ? null : element("p", { class: "dim" }, row.kind === kind.api || row.forward || row.backward ? say("the page holds no values of it") : ""),
    detail?.stack?.length ? folded("stack", say("call stack, {} frames", detail.stack.length), element("ol", {}, ...detail.stack.map((/** @type {string} */ frame) => element("li", { class: "mono" }, frame)))) : null,
    detail?.group ? folded("group", say("group of ranks"), element("p", { class: "mono" }, detail.group.join(", ")), true) : null,
    detail?.partners?.length ? partners(detail.partners) : null,
    detail?.merged ? folded("merged", say("merged from"), element("pre", {}, JSON.stringify(detail.merged, null, 1))) : null);
}

/** @param {GraphNode} row */
function summary(row) {
  const counts = row.size > 1 && row.halves ? say("{} of {} differ", grouped(row.differs + row.unmatched), grouped(row.halves)) : "";
  return facts([
    [say("forward"), row.forward], [say("backward"), row.backward], [say("in it"), joined(row.size > 1 ? grouped(row.size - 1) : "", counts)],
    [say("worst in it"), row.size > 1 && hasReference ? say(severities[row.worst]) : ""],
    [say("error"), row.error === null ? "" : digits(row.error)], [say("error backward"), row.error_backward === null ? "" : digits(row.error_backward)],
    [say("norm"), row.norm === null ? "" : digits(row.norm)], [say("gradient norm"), row.grad_norm === null ? "" : digits(row.grad_norm)],
    [say("matched with confidence"), row.match >= 0 && row.confidence !== null && row.confidence < 1 ? `${Math.round(100 * row.confidence)} %` : ""],
    [say("data type"), row.dtype], [say("device"), row.device],
  ]);
}

/** @param {any} partnersOf */
function partners(partnersOf) {
  const [step] = (graphOf("target")?.run ?? "0/0").split("/");
  return element("div", {}, heading(say("Partners in other ranks")), items(partnersOf.map((/** @type {any[]} */ [rank, node]) => (
    link(say("rank {}", rank), () => change({ run: `${step}/${rank}`, at: nodeId("target", node), fold: "" }))))));
}

// A table of tensors: the target's line, and the reference's below it.
/** @param {any} half */
function halfTable({ half, record, values }) {
  const titles = [say("value"), "", say("type"), say("shape"), "|max", "|min", "|mean", "|norm", hasReference ? `|${say("error")}` : ""].filter((text, place) => text || place === 1);
  const rows = values.flatMap((/** @type {any} */ value) => valueRows(value));
  return [heading(joined(say(half), record)), element("div", { class: "graph-values" }, table(titles, rows))];
}

/** @param {any} value */
function valueRows(value) {
  const cells = (/** @type {any} */ side) => ["max", "min", "mean", "norm"].map((name) => {
    const found = number(side?.[name]);
    return element("td", { class: "right", title: exact(found) }, digits(found));
  });
  const isBad = value.status && value.status !== "equal" && value.status !== "close";
  const shown = joined(value.dtype?.replace(/^(torch|mindspore)\./, "")) || value.type || "";
  const text = value.value === undefined || value.value === null ? "" : JSON.stringify(value.value);
  const error = hasReference ? element("td", { class: "right", title: say(value.reason ?? "") }, value.error === null || value.error === undefined ? say(value.status ?? "") : digits(number(value.error))) : null;
  const note = value.note ? element("div", { class: "note" }, say(value.note)) : null;
  const first = element("tr", { class: isBad ? "apart" : "", title: say(value.reason ?? "") }, element("td", {}, span("mono", value.slot), note),
    element("td", { class: `mark ${value.origin || value.status || ""}` }, isBad ? "◆" : value.status ? "○" : ""), element("td", {}, shown),
    element("td", {}, text || shapeText(value.shape)), ...cells(value), error);
  if (!value.reference) return [first];
  const { reference } = value;
  const other = element("tr", { class: "dim" }, element("td", {}, say("reference")), element("td", {}), element("td", {}, (reference.dtype ?? "").replace(/^(torch|mindspore)\./, "")),
    element("td", {}, reference.value === undefined || reference.value === null ? shapeText(reference.shape) : JSON.stringify(reference.value)), ...cells(reference), element("td", {}));
  return [first, other];
}

/** @param {any} shape */
function shapeText(shape) { return Array.isArray(shape) ? `[${shape.join(", ")}]` : shape ?? ""; }
