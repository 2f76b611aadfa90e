// SPDX-License-Identifier: Apache-2.0
// The modules of a comparison as a tree, folded to where differences are; picking one filters the list.

import { say } from "../shared/language.js";
import { isUnder, summary } from "../data/comparison.js";
import { groupOf, mark, words } from "../data/words.js";
import { element, isNarrow, replace, span } from "../shared/dom.js";
import { digits, grouped, plural } from "../shared/format.js";
import { number, sections } from "../shared/sections.js";
import { showMain } from "../shared/shell.js";
import { change, state, words as chosen } from "../shared/store.js";
import { FoldableTree } from "../shared/tree.js";

/**
 * @typedef {object} ModuleNode
 * @property {string} path
 * @property {string} label
 * @property {number} rows
 * @property {number} differ
 * @property {number} introduced
 * @property {string} status the worst
 * @property {number | null} error the largest
 * @property {ModuleNode[]} children
 * @property {boolean} isOpen
 * @property {boolean} isOpenAtFirst
 */

const mostOpen = 8;
/** @type {ModuleNode} */
let root;
/** @type {ModuleNode[]} */
let nodes = [];
let revealed = "";
/** @type {FoldableTree<ModuleNode>} */
let tree;

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "modules", title: "Modules", place: "side", needs: ["modules"], state: { module: "", tree: "" }, uses: ["module", "tree"], beside: ["list"],

  start(pane) {
    root = readModules();
    foldMany(root);
    nodes.forEach((node) => { node.isOpenAtFirst = node.isOpen; });
    tree = new FoldableTree({ id: "tree", label: "Modules", root, draw: drawNode, pick, folded: keepFolds });
    replace(pane, element("h2", {}, say("Modules")), tree.box);
  },

  render() {
    const folds = new Set(chosen("tree"));
    nodes.forEach((node, place) => { node.isOpen = node.isOpenAtFirst !== folds.has(String(place)); });
    // What is above the module may be folded afterwards.
    if (state.module !== revealed) reveal(state.module);
    revealed = state.module;
    tree.render();
  },
};

// The state names the modules, by place, that are not as they were at first.
function keepFolds() {
  const places = nodes.flatMap((node, place) => (node.isOpen === node.isOpenAtFirst ? [] : [place]));
  change({ tree: places.join(",") });
}

/** @returns {ModuleNode} */
function readModules() {
  /** @type {any[][]} */
  const rows = sections.modules;
  nodes = rows.map(([path, label, , count, differ, introduced, worst, error]) => ({
    path, label, rows: count, differ, introduced, status: words.severity[worst] ?? "", error: number(error),
    children: [], isOpen: false, isOpenAtFirst: false,
  }));
  rows.forEach(([, , parent], place) => { if (parent !== null) nodes[parent].children.push(nodes[place]); });
  nodes[0].label = say("all modules");
  nodes[0].isOpen = true;
  const opened = summary.first_difference?.module ?? "";
  for (const node of nodes.slice(1)) node.isOpen = node.introduced > 0 || `${opened}.`.startsWith(`${node.path}.`);
  return nodes[0];
}

/** Folds all but the first of many open neighbours. @param {ModuleNode} node */
function foldMany(node) {
  const opened = node.children.filter((child) => child.isOpen);
  opened.slice(mostOpen).forEach((child) => { child.isOpen = false; });
  opened.slice(0, mostOpen).forEach(foldMany);
}

/** Opens what is above a module, so that it can be seen. @param {string} path */
function reveal(path) {
  /** @type {ModuleNode | undefined} */
  let node = path ? root : undefined;
  while (node && node.path !== path) {
    node.isOpen = true;
    node = node.children.find((child) => isUnder(path, child.path));
  }
}

/** @param {ModuleNode} node @returns {[group: string, meaning: string]} */
function judge(node) {
  if (node.introduced) return ["introduced", say("{} introduced in here", plural(node.introduced, "difference"))];
  const group = groupOf(node.status);
  if (group === "agrees") return [group, say(group)];
  const error = node.differ ? say(", largest error {}", digits(node.error)) : "";
  return [group === "other" ? "inherited" : group, say("worst: {}", `${say(node.status)}${error}`)];
}

/** @param {ModuleNode} node */
function drawNode(node) {
  const [group, meaning] = judge(node);
  const isPicked = node.path === state.module;
  const share = node.differ ? `${grouped(node.differ)} / ${grouped(node.rows)}` : grouped(node.rows);
  return {
    attributes: {
      class: `${group === "agrees" ? "clean" : ""} ${isPicked ? "picked" : ""}`, "aria-selected": String(isPicked),
      title: `${node.path || say("everything")}: ${meaning}`,
    },
    children: [mark(group, meaning), span("name", node.label), span("share", share)],
  };
}

/** @param {ModuleNode} node */
function pick(node) {
  if (node.children.length && !node.isOpen) { node.isOpen = true; keepFolds(); }
  if (!change({ module: node.path === state.module ? "" : node.path })) tree.render();
  if (isNarrow()) showMain();
}
