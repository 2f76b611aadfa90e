// SPDX-License-Identifier: Apache-2.0
// Search and commands in one box (Ctrl-K): what is typed finds nodes, and things to do.

import { graphOf, kind, nodeId } from "../data/graph.js";
import { examples, find } from "../data/graph_search.js";
import { element, replace, span } from "../shared/dom.js";
import { say } from "../shared/language.js";
import { change, state } from "../shared/store.js";
import { look } from "./colours.js";
import { title } from "./scene.js";

/** @typedef {{text: string, under: string, mark: string, colour: string, act: () => void}} Answer */

const mostShown = 60;
/** @type {Answer[]} */
let answers = [];
let at = 0;
/** @type {() => [string, () => void][]} */
let commandsNow = () => [];

const list = element("div", { id: "palette-list", role: "listbox", "aria-label": say("Found") });
const count = element("p", { class: "dim", "aria-live": "polite" });
const box = element("input", {
  type: "search", id: "palette-box", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", autocomplete: "off", spellcheck: "false",
  placeholder: say("name, class, source, or norm>1e4 status:error dir:backward"), "aria-label": say("Search"), input: () => search(), keydown: onKey,
});
const dialog = element("dialog", { id: "palette", "aria-label": say("Search") }, box, count, list,
  element("p", { class: "dim" }, `${say("for example")} ${examples.join("  ")}`));

/** @param {KeyboardEvent} event */
function onKey(event) {
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
  if (by) { event.preventDefault(); at = Math.min(Math.max(at + by, 0), answers.length - 1); show(); }
  if (event.key === "Enter" && answers[at]) { event.preventDefault(); choose(answers[at]); }
}

/** @param {Answer} answer */
function choose(answer) {
  change({ find: box.value.startsWith(">") ? state.find : box.value });
  dialog.close();
  answer.act();
}

async function search() {
  const text = box.value, graph = graphOf("target");
  const asked = text.replace(/^>/, "").trim().toLowerCase();
  const commands = commandsNow().filter(([name]) => asked && name.toLowerCase().includes(asked)).slice(0, text.startsWith(">") ? 40 : 4)
    .map(([name, act]) => ({ text: name, under: say("command"), mark: "›", colour: "", act }));
  const found = graph && asked && !text.startsWith(">") ? await find(graph, text, mostShown) : { ids: [], total: 0 };
  if (text !== box.value) return;
  const nodes = [];
  for (const id of found.ids) {
    if (!graph) continue;
    const node = graph.node(id);
    const seen = look(node, false);
    nodes.push({
      text: title(node), under: [whereOf(graph, node), node.class, node.source].filter(Boolean).join(" · "), mark: seen.mark || "·", colour: seen.fill,
      act: () => { change({ at: nodeId("target", id), part: "", view: "graph" }); },
    });
  }
  answers = [...nodes, ...commands];
  at = 0;
  count.textContent = asked ? say("{} found", found.total) : "";
  show();
}

/** @param {import("../data/graph.js").Graph} graph @param {import("../data/graph.js").GraphNode} node */
function whereOf(graph, node) {
  if (node.kind !== kind.api) return node.path || node.name;
  return [node.parent > 0 && graph.isKnown(node.parent) ? graph.node(node.parent).path : "", node.forward || node.backward].filter(Boolean).join(" · ");
}

function show() {
  replace(list, ...answers.map((answer, place) => element("div", {
    id: `palette-${place}`, role: "option", "aria-selected": String(place === at), class: "palette-row", click: () => choose(answer),
  }, element("span", { class: "mark", style: answer.colour ? `color:${answer.colour}` : null }, answer.mark), span("mono", answer.text), span("dim", answer.under))));
  box.setAttribute("aria-activedescendant", `palette-${at}`);
  list.children[at]?.scrollIntoView({ block: "nearest" });
}

/** Opens the box. @param {() => [string, () => void][]} commands */
export function openPalette(commands) {
  commandsNow = commands;
  if (!dialog.isConnected) document.body.append(dialog);
  dialog.showModal();
  box.value = state.find;
  box.select();
  void search();
}
