// SPDX-License-Identifier: Apache-2.0
// Puts the parts together: theme, keyboard, panes.

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  drawTimeline();
}

function toggleTheme() { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); }

function showPane(name) {
  document.body.dataset.pane = name;
  for (const button of document.querySelectorAll(".tabs button")) {
    button.setAttribute("aria-current", String(button.dataset.pane === name));
  }
  list.drawn = "";
  drawRows();
}

const keys = {
  "/": ["search", () => { showPane("list"); byId("search").focus(); byId("search").select(); }],
  "j": ["next operation (also ↓)", () => moveInList(1)],
  "k": ["operation before (also ↑)", () => moveInList(-1)],
  "n": ["next introduced difference", () => openIntroduced(1)],
  "p": ["introduced difference before", () => openIntroduced(-1)],
  "d": ["only differences, or all", () => { setOnlyDifferences(!filters.onlyDifferences); refresh(); }],
  "t": ["light or dark", toggleTheme],
  "?": ["this list", () => byId("help").showModal()],
  "Escape": ["back to the overview", () => { closeDetail(); showPane("detail"); }],
};

function openIntroduced(by) {
  const operation = nextIntroduced(by);
  if (operation) openOperation(operation);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const { target } = event;
  if (target.matches("input, select, textarea")) {
    if (event.key === "Escape") { target.blur(); byId("rows").focus(); }
    if (event.key === "Enter" && target.id === "search" && list.shown.length) openOperation(list.shown[0]);
    return;
  }
  const moves = target.id === "rows" || target === document.body
    ? { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity } : {};
  if (moves[event.key]) { event.preventDefault(); moveInList(moves[event.key]); return; }
  if (keys[event.key]) { event.preventDefault(); keys[event.key][1](); }
}

function startHelp() {
  const rows = Object.entries(keys).map(([key, [meaning]]) => [element("kbd", {}, key), meaning]);
  const dialog = byId("help");
  replace(dialog, element("h2", {}, "Keyboard"), facts(rows),
    element("button", { type: "button", class: "copy", click: () => dialog.close() }, "close"));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  byId("help-button").addEventListener("click", () => dialog.showModal());
}

function startComparisons() {
  const select = byId("comparison");
  if (!severalComparisons) return;
  select.hidden = false;
  select.append(element("option", { value: "" }, "all steps and ranks"));
  for (const { step, rank } of summary.comparisons) {
    select.append(element("option", { value: `${step}/${rank}` }, placeName(step, String(rank))));
  }
  select.addEventListener("change", () => pickComparison(select.value));
}

function start() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  document.body.dataset.pane = "detail";
  drawHeader();
  startComparisons();
  startHelp();
  startTree();
  startList();
  startTimeline();
  drawOverview();
  refresh();
  showPane("detail");
  document.querySelectorAll(".tabs button").forEach((button) => button.addEventListener("click", () => {
    if (button.dataset.pane === "detail" && window.matchMedia("(max-width: 720px)").matches) closeDetail();
    showPane(button.dataset.pane);
  }));
  byId("theme-button").addEventListener("click", toggleTheme);
  document.addEventListener("keydown", onKey);
}

start();
