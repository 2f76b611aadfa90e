// SPDX-License-Identifier: Apache-2.0
// The modules: folded to where differences are; picking one filters the list.

const tree = { root: null, visible: [], at: 0 };

function readModules() {
  const nodes = data.modules.map(([path, label, , rows, differ, introduced, worst, error]) => (
    {
      path, label, rows, differ, introduced, status: words.severity[worst] ?? "", error: number(error),
      children: [], isOpen: false,
    }));
  data.modules.forEach(([, , parent], place) => { if (parent !== null) nodes[parent].children.push(nodes[place]); });
  nodes[0].label = "all modules";
  nodes[0].isOpen = true;
  const opened = summary.first_difference?.module ?? "";
  for (const node of nodes.slice(1)) node.isOpen = node.introduced > 0 || `${opened}.`.startsWith(`${node.path}.`);
  return nodes[0];
}

// Of many open neighbours only the first stay open.
function foldMany(node) {
  const open = node.children.filter((child) => child.isOpen);
  open.slice(8).forEach((child) => { child.isOpen = false; });
  open.slice(0, 8).forEach(foldMany);
}

function drawTree() {
  tree.visible = [];
  const collect = (node, depth) => {
    tree.visible.push({ node, depth });
    if (node.isOpen) node.children.forEach((child) => collect(child, depth + 1));
  };
  collect(tree.root, 0);
  tree.at = Math.min(tree.at, tree.visible.length - 1);
  replace(byId("tree"), ...tree.visible.map(drawNode));
}

function judgeNode(node) {
  if (node.introduced) return ["introduced", `${plural(node.introduced, "difference")} introduced in here`];
  if (!node.differ) return ["agrees", "agrees"];
  const group = groupOf(node.status) === "other" ? "inherited" : groupOf(node.status);
  return [group, `worst: ${node.status}, largest error ${digits(node.error)}`];
}

function drawNode({ node, depth }, place) {
  const [group, meaning] = judgeNode(node);
  const classes = ["node", node.differ ? "" : "clean", node.path === filters.module ? "picked" : ""];
  if (place === tree.at) classes.push("at");
  return element("div", {
    class: classes.join(" "), role: "treeitem", style: `padding-left:${4 + 13 * depth}px`, id: `node-${place}`,
    "aria-level": depth + 1, "aria-expanded": node.children.length ? String(node.isOpen) : null,
    "aria-selected": String(node.path === filters.module), title: `${node.path || "everything"}: ${meaning}`,
    click: (event) => {
      tree.at = place;
      if (event.target.classList.contains("twist") && node.children.length) toggle(node);
      else pickModule(node);
    },
  },
  element("span", { class: "twist" }, node.children.length ? (node.isOpen ? "▾" : "▸") : ""),
  mark(group, meaning),
  element("span", { class: "name" }, node.label),
  element("span", { class: "share" }, node.differ ? `${grouped(node.differ)} / ${grouped(node.rows)}` : grouped(node.rows)));
}

function toggle(node) { node.isOpen = !node.isOpen; drawTree(); }

function pickModule(node) {
  filters.module = node.path === filters.module ? "" : node.path;
  if (node.children.length) node.isOpen = true;
  drawTree();
  refresh();
  if (window.matchMedia("(max-width: 720px)").matches) showPane("list");
}

// Opens the tree down to a module, so that it can be seen.
function revealModule(path) {
  let node = tree.root;
  while (node) {
    node.isOpen = true;
    node = node.children.find((child) => isUnder(path, child.path));
  }
  tree.at = 0;
  drawTree();
}

function treeKey(event) {
  const { node } = tree.visible[tree.at];
  const parentAt = () => {
    const { depth } = tree.visible[tree.at];
    for (let place = tree.at; place >= 0; place -= 1) if (tree.visible[place].depth < depth) return place;
    return 0;
  };
  const moves = {
    ArrowDown: () => { tree.at = Math.min(tree.at + 1, tree.visible.length - 1); },
    ArrowUp: () => { tree.at = Math.max(tree.at - 1, 0); },
    ArrowRight: () => {
      if (!node.isOpen && node.children.length) node.isOpen = true;
      else moves.ArrowDown();
    },
    ArrowLeft: () => {
      if (node.isOpen && node.children.length) node.isOpen = false;
      else tree.at = parentAt();
    },
    Home: () => { tree.at = 0; },
    End: () => { tree.at = tree.visible.length - 1; },
    Enter: () => pickModule(node),
    " ": () => pickModule(node),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  moves[event.key]();
  drawTree();
  byId("tree").setAttribute("aria-activedescendant", `node-${tree.at}`);
  byId(`node-${tree.at}`).scrollIntoView({ block: "nearest" });
}

function startTree() {
  tree.root = readModules();
  foldMany(tree.root);
  byId("tree").addEventListener("keydown", treeKey);
  drawTree();
}
