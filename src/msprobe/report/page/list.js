// SPDX-License-Identifier: Apache-2.0
// The list of operations. Only the lines in sight exist, so tens of thousands cost nothing.

const list = { shown: [], at: -1, drawn: "" };
const rowHeight = 46;

function refresh() {
  const picked = detail.operation;
  list.shown = selectOperations(byId("sort").value);
  list.at = picked ? list.shown.indexOf(picked) : -1;
  byId("space").style.height = `${list.shown.length * rowHeight}px`;
  const all = operations.filter(inComparison).length;
  const part = list.shown.length === all ? "all" : `${grouped(list.shown.length)} of`;
  const where = filters.module ? ` in ${filters.module}` : "";
  byId("found").textContent = `${part} ${plural(all, "operation")}${where}`;
  byId("clear").hidden = list.shown.length === all;
  list.drawn = "";
  byId("rows").scrollTop = list.at > 0 ? Math.max(list.at - 2, 0) * rowHeight : 0;
  drawRows();
  drawTimeline();
}

function drawRows() {
  const box = byId("rows");
  const first = Math.max(Math.floor(box.scrollTop / rowHeight) - 6, 0);
  const last = Math.min(Math.ceil((box.scrollTop + (box.clientHeight || 800)) / rowHeight) + 6, list.shown.length);
  const wanted = `${first}-${last}-${list.at}`;
  if (wanted === list.drawn) return;
  list.drawn = wanted;
  const rows = [];
  for (let place = first; place < last; place += 1) rows.push(drawRow(list.shown[place], place));
  const why = summary.rows ? "Nothing fits these filters." : "There is nothing to show.";
  replace(byId("space"), ...rows, list.shown.length ? null : element("p", { class: "none" }, why));
  if (list.at >= 0) box.setAttribute("aria-activedescendant", `row-${list.at}`);
  else box.removeAttribute("aria-activedescendant");
}

// Where room is short the API's prefix goes first, the number and the direction of the call never.
function titleParts({ title: text, direction }) {
  const [, prefix = "", name, call = ""] = text.match(/^([A-Z]\w*\.)?(.*?)(\.\d+)?$/s);
  return [span("prefix", prefix), span("name", name), span("call", call), span("direction", direction)];
}

function drawRow(operation, place) {
  const where = joined(operation.kind === "parameter" ? "parameter" : "",
    severalComparisons ? placeName(operation.step, operation.rank) : "",
    operation.source, operation.module || "outside of modules");
  const came = operation.match === "unmatched" ? "" : operation.unmeasuredIn ?? digits(operation.errorIn);
  const said = operation.origin ?? (operation.differs ? operation.status : "");
  return element("div", {
    class: `row ${operation.origin === "introduced" ? "is-introduced" : ""}`, role: "option", id: `row-${place}`,
    "aria-selected": String(place === list.at), "aria-posinset": place + 1, "aria-setsize": list.shown.length,
    style: `top:${place * rowHeight}px`, title: operation.name,
    click: () => openOperation(operation),
  },
  mark(operation.group, words.origins[operation.origin] ?? words.statuses[operation.status]),
  element("div", { class: "what" },
    element("div", { class: "title" }, ...titleParts(operation)),
    element("div", { class: "where" }, said ? span(operation.group, said) : "", said ? " · " : "", where)),
  element("div", { class: "in number" }, came),
  outCell(operation));
}

function outCell(operation) {
  if (operation.match === "unmatched") {
    return element("div", { class: "out unmatched" }, operation.status === "added" ? "target only" : "reference only");
  }
  const error = operation.errorOut;
  const text = operation.unmeasuredOut ?? digits(error);
  const level = error > 0 ? (Math.log10(Math.min(error, 1e9)) - lowDecade) / (highDecade - lowDecade) : 0;
  const filled = operation.unmeasuredOut ? 1 : Math.min(Math.max(level, 0), 1);
  return element("div", { class: `out number ${operation.group === "inherited" ? "" : operation.group}` }, text,
    element("div", { class: `bar ${operation.group}` }, element("i", { style: `width:${(100 * filled).toFixed(0)}%` })));
}

function moveInList(by) {
  if (!list.shown.length) return;
  list.at = Math.min(Math.max(list.at + by, 0), list.shown.length - 1);
  openOperation(list.shown[list.at], { stay: true });
}

function revealRow() {
  const box = byId("rows"), top = list.at * rowHeight;
  if (list.at < 0) return;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + rowHeight - box.clientHeight;
}

function chipGroup(name, labels, counts, meanings) {
  const present = labels.filter((word) => counts[word]);
  if (present.length < (name === "origin" ? 1 : 2)) return [];
  return [element("span", { class: "group" }, name), ...present.map((word) => element("button", {
    type: "button", class: "chip", "aria-pressed": "false", title: meanings?.[word], "data-filter": name, "data-word": word,
    click: (event) => {
      if (filters[name].delete(word)) event.currentTarget.setAttribute("aria-pressed", "false");
      else { filters[name].add(word); event.currentTarget.setAttribute("aria-pressed", "true"); }
      // Who asks for equal values wants to see them.
      if (name === "status" && filters.status.has(word) && !isDifference.has(word)) setOnlyDifferences(false);
      refresh();
    },
  }, word.replace("_", " "), " ", element("span", { class: "count" }, grouped(counts[word]))))];
}

function setOnlyDifferences(isOn) {
  filters.onlyDifferences = isOn;
  document.querySelector("[data-filter=differences]")?.setAttribute("aria-pressed", String(isOn));
}

function kindCounts() {
  const counts = {};
  for (let row = 0; row < data.shown.rows; row += 1) {
    const kind = cell(data.values, "kind", row);
    counts[kind] = (counts[kind] ?? 0) + 1;
  }
  return counts;
}

function clearFilters() {
  filters.text = filters.module = filters.comparison = byId("search").value = byId("comparison").value = "";
  for (const name of ["status", "origin", "kind"]) filters[name].clear();
  setOnlyDifferences(false);
  document.querySelectorAll(".chip").forEach((chip) => chip.setAttribute("aria-pressed", "false"));
  drawTree();
  refresh();
}

function startList() {
  const kinds = kindCounts();
  const only = summary.equal ? [] : [element("button", {
    type: "button", class: "chip", "aria-pressed": String(filters.onlyDifferences), "data-filter": "differences",
    click: () => { setOnlyDifferences(!filters.onlyDifferences); refresh(); },
  }, "only differences")];
  replace(byId("chips"), ...only,
    ...chipGroup("origin", originNames, summary.origins, words.origins),
    ...chipGroup("status", Object.keys(words.statuses), summary.counts, words.statuses),
    ...chipGroup("kind", Object.keys(kinds), kinds));
  byId("rows").addEventListener("scroll", drawRows, { passive: true });
  byId("sort").addEventListener("change", refresh);
  byId("clear").addEventListener("click", clearFilters);
  byId("search").addEventListener("input", (event) => { filters.text = event.target.value; refresh(); });
  new ResizeObserver(() => { list.drawn = ""; drawRows(); }).observe(byId("rows"));
  const { rows, of_rows: ofRows } = data.shown;
  if (rows < ofRows) {
    byId("limit").hidden = false;
    byId("limit").textContent = `Showing the ${grouped(rows)} most interesting of ${grouped(ofRows)} values; `
      + "all are in the table file. Counts, modules and plots are of all.";
  }
}
