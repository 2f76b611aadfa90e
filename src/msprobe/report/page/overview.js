// SPDX-License-Identifier: Apache-2.0
// The answer: what differs first, who introduced it, how large errors are, what to do next.

function different() {
  return words.differences.reduce((sum, word) => sum + (summary.counts[word] ?? 0), 0);
}

function drawHeader() {
  const count = different();
  const text = !summary.rows ? "There was nothing to compare" : summary.equal ? `All ${plural(summary.rows, "value")} agree` : `${grouped(count)} of ${plural(summary.rows, "value")} differ`;
  replace(byId("verdict"), element("span", { class: `badge ${summary.equal ? "equal" : ""}` }, summary.equal ? "equal" : "different"), text);
  byId("sides").textContent = `${summary.target}  against  ${summary.reference}`;
}

function drawOverview() {
  replace(byId("detail"), ...firstDifference(), ...culprits(), ...distribution(), ...comparisonTable(),
    ...unmatched(), ...pairing(), ...replicas(), ...nextSteps(), ...notes(), ...about());
  byId("detail").scrollTop = 0;
}

function opener(place, ...content) {
  const operation = operationAt(place);
  return element("button", { type: "button", class: "culprit", disabled: !operation, click: () => openOperation(operation) }, ...content);
}

function firstDifference() {
  const first = summary.first_difference;
  if (!first) return [];
  const operation = operationAt(first);
  const place = [first.status, first.origin, first.module || "outside of modules", first.source];
  if (severalComparisons) place.push(placeName(first.step, String(first.rank)));
  return [element("h3", {}, "First difference in the order of execution"),
    opener(first, mark(first.origin ?? groupOf(first.status)), element("b", {}, ...breakable(operation ? operation.label : first.name)),
      element("span", { class: "number" }, digits(number(first.error))), element("span", {}), element("span", { class: "sub" }, place.filter(Boolean).join(" · "))),
    first.reason ? element("p", { class: `why ${first.origin ?? ""}` }, first.reason) : null];
}

// One culprit may be found in many steps and ranks: it is one item, at its best place.
function groupedCulprits() {
  const found = new Map();
  for (const each of summary.introduced) {
    const key = `${each.kind} ${each.name}`;
    if (!found.has(key)) found.set(key, { first: each, places: new Set() });
    found.get(key).places.add(`${each.step}/${each.rank}`);
  }
  return [...found.values()];
}

function culprits() {
  if (!summary.introduced.length) return summary.equal ? [] : [element("h3", {}, "Introduced"), element("p", { class: "dim" }, "No operation introduces a difference by itself.")];
  const found = groupedCulprits();
  const items = found.slice(0, 12).map(culpritItem), rest = found.slice(12).map(culpritItem);
  const total = summary.introduced_total;
  const count = total > found.length ? `${grouped(found.length)} operations, ${grouped(total)} values` : grouped(found.length);
  return [element("h3", {}, `Introduced here, best culprit first: ${count}`),
    element("ul", { class: "culprits" }, ...items),
    rest.length ? element("details", {}, element("summary", { class: "dim" }, `${rest.length} more`), element("ul", { class: "culprits" }, ...rest)) : null];
}

function culpritItem({ first: each, places }) {
  const operation = operationAt(each);
  const sub = [each.kind.replace("_", " "), each.status, each.module || "outside of modules", each.source];
  if (severalComparisons) sub.push(places.size > 1 ? `in ${places.size} of ${summary.comparisons.length} steps and ranks` : placeName(each.step, String(each.rank)));
  return element("li", {}, opener(each, mark("introduced"), element("b", {}, ...breakable(operation ? operation.label : each.name)),
    element("span", { class: "number introduced" }, each.error === null ? each.status : digits(number(each.error))),
    element("span", {}), element("span", { class: "sub" }, sub.filter(Boolean).join(" · "))));
}

const histogramOrder = ["agrees", "inherited", "other", "input", "amplified", "introduced"];

// Bars by half decades, on a square root scale: rare large errors matter more than many small ones.
function distribution() {
  const { from, per_decade: perDecade, counts } = data.histogram;
  const groups = histogramOrder.filter((name) => counts[name]);
  const sums = groups.length ? counts[groups[0]].map((_, bin) => groups.reduce((sum, name) => sum + counts[name][bin], 0)) : [];
  const first = sums.findIndex(Boolean), last = sums.findLastIndex(Boolean);
  if (first < 0) return [];
  const start = Math.floor(first / perDecade) * perDecade, end = Math.ceil((last + 1) / perDecade) * perDecade;
  const width = 520, height = 130, left = 6, bottom = 18, top = 16;
  const step = (width - 2 * left) / (end - start), most = Math.max(...sums);
  const tall = (count) => (height - bottom - top) * Math.sqrt(count / most);
  const svg = shape("svg", { class: "histogram", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "How many values have which relative error" });
  for (let bin = start; bin < end; bin += 1) {
    const x = left + (bin - start) * step;
    let below = 0;
    for (const name of groups) {
      const count = counts[name][bin];
      if (!count) continue;
      const y0 = tall(below), y1 = tall(below + count);
      const low = 10 ** (from + bin / perDecade), high = 10 ** (from + (bin + 1) / perDecade);
      const bar = shape("rect", { x: x + 1, y: height - bottom - y1, width: Math.max(step - 2, 1), height: Math.max(y1 - y0, 1), fill: `var(--${name})` });
      bar.append(shape("title", {}, `${plural(count, "value")} ${name === "agrees" ? "that agree" : name}, error ${digits(low)} to ${digits(high)}`));
      svg.append(bar);
      below += count;
    }
    if (sums[bin] === most) svg.append(shape("text", { x: x + step / 2, y: top - 5, "text-anchor": "middle" }, grouped(most)));
  }
  svg.append(shape("line", { x1: left, x2: width - left, y1: height - bottom + 0.5, y2: height - bottom + 0.5 }));
  const every = Math.ceil((end - start) / perDecade / 9) * perDecade;
  for (let bin = start; bin <= end; bin += every) {
    svg.append(shape("text", { x: Math.min(Math.max(left + (bin - start) * step, 14), width - 16), y: height - 4, "text-anchor": "middle" }, `1e${from + bin / perDecade}`));
  }
  return [element("h3", {}, "How large the relative errors are (values, square root scale)"), svg];
}

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

function comparisonTable() {
  if (!severalComparisons) return [];
  const rows = summary.comparisons.map((each) => {
    const differ = words.differences.reduce((sum, word) => sum + (each.counts[word] ?? 0), 0);
    const total = Object.values(each.counts).reduce((sum, count) => sum + count, 0);
    const first = each.first_difference;
    return element("tr", {},
      element("td", {}, element("button", { type: "button", class: "link", click: () => pickComparison(`${each.step}/${each.rank}`) }, placeName(each.step, String(each.rank)))),
      element("td", { class: "right" }, `${grouped(differ)} of ${grouped(total)}`),
      element("td", { class: "mono" }, first ? first.name : "–"));
  });
  return [element("h3", {}, "Steps and ranks"), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, headings("", "|differ", "first difference")), element("tbody", {}, ...rows)))];
}

function pickComparison(value) {
  filters.comparison = byId("comparison").value = value;
  refresh();
}

function unmatched() {
  const parts = [];
  for (const [word, side] of [["added", "target"], ["missing", "reference"]]) {
    const count = summary.unmatched[side], names = summary.unmatched.operations[word] ?? [];
    if (!count) continue;
    const more = count > names.length ? `, the first ${names.length}` : "";
    const unique = [...new Set(names)];
    parts.push(element("details", { open: unique.length <= 6 }, element("summary", {}, `${plural(count, "operation")} only in the ${side}${more}`),
      element("ul", { class: "plain-list mono" }, ...unique.map((name) => element("li", {}, ...breakable(name))))));
  }
  return parts.length ? [element("h3", {}, "Without a partner"), ...parts] : [];
}

function pairing() {
  const guessed = operations.filter((each) => each.match !== "exact" && each.match !== "unmatched");
  if (!guessed.length) return [];
  guessed.sort((left, right) => left.confidence - right.confidence);
  const rows = guessed.slice(0, 12).map((each) => element("tr", {}, element("td", { class: "right" }, digits(each.confidence)), element("td", {}, each.match),
    element("td", {}, element("button", { type: "button", class: "link mono", click: () => openOperation(each) }, each.name))));
  const more = guessed.length > rows.length ? `, the ${rows.length} least certain` : "";
  return [element("h3", {}, `Paired by more than the name: ${grouped(guessed.length)}${more}`), element("div", { class: "scroll" },
    element("table", {}, element("thead", {}, headings("|confidence", "by", "operation")), element("tbody", {}, ...rows)))];
}

function replicas() {
  if (!summary.replicas) return [];
  if (!summary.replicas.length) return [element("h3", {}, "Replicas"), element("p", {}, "Ranks that should agree do.")];
  const items = summary.replicas.slice(0, 50).map((each) => element("li", {}, element("span", { class: "mono" }, ...breakable(String(each.row ?? each.name ?? ""))), " ",
    element("span", { class: "dim" }, [each.error === undefined || each.error === null ? each.status : digits(number(each.error)), each.reason, each.source].filter(Boolean).join(" · "))));
  const more = summary.replicas.length > items.length ? `, the first ${items.length}` : "";
  return [element("h3", {}, `Ranks that should agree differ: ${plural(summary.replicas.length, "value")}${more}`), element("ul", { class: "plain-list" }, ...items)];
}

function nextSteps() {
  if (!summary.next_steps.length) return [];
  return [element("h3", {}, "What to do next"), ...summary.next_steps.map((text) => (
    text.startsWith("msprobe ") ? command(text) : element("p", { style: "overflow-wrap:anywhere" }, text)))];
}

function notes() {
  if (!summary.notes.length) return [];
  return [element("h3", {}, "Notes"), element("ul", { class: "plain-list" }, ...summary.notes.map((text) => element("li", {}, text)))];
}

function about() {
  const meanings = (table, isOrigin) => element("dl", { class: "facts" }, ...Object.entries(table).flatMap(([word, meaning]) => [
    element("dt", {}, isOrigin ? mark(word) : null, isOrigin ? " " : null, element("span", { class: word }, word)), element("dd", {}, meaning)]));
  return [element("h3", {}, "About this comparison"), facts([
    ["target", element("span", { class: "mono" }, summary.target)], ["reference", element("span", { class: "mono" }, summary.reference)],
    ["judged by", words.modes[summary.mode] ?? summary.mode],
    ["size", `${plural(summary.rows, "value")} in ${plural(summary.operations, "operation")}`],
    ["took", `${digits(summary.elapsed_s)} s${summary.bytes_read ? `, ${bytes(summary.bytes_read)} read` : ""}`],
    ["written by", `msprobe ${summary.msprobe_version}`]]),
  element("details", {}, element("summary", { class: "dim" }, "what the words mean"), meanings(words.origins, true), element("hr", {}), meanings(words.statuses, false))];
}
