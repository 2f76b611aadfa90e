// SPDX-License-Identifier: Apache-2.0
// One operation in full: why it is shown, its values, both sides of the one that is picked.

const detail = { operation: null, row: -1 };

function openOperation(operation, { stay = false } = {}) {
  detail.operation = operation;
  detail.row = operation.worst;
  list.at = list.shown.indexOf(operation);
  revealRow();
  drawRows();
  drawTimeline();
  drawDetail();
  if (!stay && window.matchMedia("(max-width: 720px)").matches) showPane("detail");
  else if (document.body.dataset.pane === "modules") showPane("list");
}

function closeDetail() {
  detail.operation = null;
  list.at = -1;
  drawRows();
  drawTimeline();
  drawOverview();
}

function drawDetail() {
  const { operation } = detail;
  const value = readValue(detail.row);
  const meaning = value.origin ? words.origins[value.origin] : words.statuses[value.status];
  const box = byId("detail");
  replace(box, crumbs(operation),
    element("h2", { class: "mono" }, ...breakable(operation.name), " ", copyButton(operation.name)),
    element("div", {}, pill(value.status, words.statuses[value.status]),
      value.origin ? pill(value.origin, words.origins[value.origin]) : null, span("dim", meaning)),
    value.reason ? element("p", { class: `why ${value.origin ?? ""}` }, value.reason) : null,
    title("Where"), whereFacts(operation, value), stackOf(operation),
    title(`Values of this operation (${operation.rows})`), valueTable(operation),
    ...valueParts(operation, value));
  box.scrollTop = 0;
}

function crumbs(operation) {
  const neighbour = (by) => {
    const other = operations[operation.place + by];
    const isSame = other && other.step === operation.step && other.rank === operation.rank;
    return isSame ? other : null;
  };
  const to = (text, other, meaning) => other && link(text, () => openOperation(other), { title: meaning });
  const [before, after] = [neighbour(-1), neighbour(1)];
  return element("div", { class: "crumbs" },
    link("← overview", closeDetail, { title: "Escape" }),
    to("ran before", before, before?.name), to("ran after", after, after?.name),
    to("next introduced", nextIntroduced(1), "n"));
}

function nextIntroduced(by) {
  const found = operations.filter((each) => each.origin === "introduced" && inComparison(each));
  if (!found.length) return null;
  const here = detail.operation ? found.indexOf(detail.operation) : -1;
  if (here >= 0) return found.length > 1 ? found[(here + by + found.length) % found.length] : null;
  return found.find((each) => each.interest < 0 && each.culprit === summary.introduced[0]) ?? found[0];
}

function whereFacts(operation, value) {
  const pickIt = () => {
    filters.module = operation.module;
    revealModule(operation.module);
    refresh();
  };
  const module = operation.module && link(operation.module, pickIt, { title: "show this module only" });
  let pairing = `${operation.match}, confidence ${digits(operation.confidence)}`;
  if (operation.match === "exact") pairing = "";
  if (operation.match === "unmatched") pairing = "no partner";
  return facts([
    ["module", module || "outside of modules"],
    ["source", operation.source && span("mono", operation.source)],
    ["kind", value.kind.replace("_", " ")],
    ["run", severalComparisons ? placeName(operation.step, operation.rank) : ""],
    ["order", `${grouped(operation.order)} in the execution`],
    ["paired by", pairing],
    ["target's name", value.target_name],
    ["reference's name", value.reference_name],
  ]);
}

function stackOf(operation) {
  const stack = operation.culprit?.stack ?? [];
  if (stack.length < 2) return null;
  const frames = stack.map((frame) => element("li", {}, frame));
  return folded(`call stack, ${plural(stack.length, "frame")}`,
    element("ol", { class: "plain-list mono" }, ...frames));
}

// Type and shape of a tensor, the value of anything else; of both sides where they are different.
function kindOfValue(value) {
  const isTensor = (value.target_shape ?? value.reference_shape ?? null) !== null;
  const side = (name) => {
    if (!isTensor) return value[`${name}_value`] ?? "";
    return (value[`${name}_dtype`] ?? "") + (value[`${name}_shape`] ?? "").replaceAll(" ", "");
  };
  const [target, reference] = [side("target"), side("reference")];
  const isOne = !target || !reference || target === reference;
  return isOne ? target || reference : `${target}, reference ${reference}`;
}

function valueTable(operation) {
  const rows = [];
  for (let row = operation.first; row < operation.first + operation.rows; row += 1) {
    rows.push(valueRow(row));
  }
  const made = table(["value", "type", "status", "|error"], rows);
  made.firstChild.classList.add("values");
  return made;
}

function valueRow(row) {
  const value = readValue(row);
  const pickIt = () => {
    detail.row = row;
    drawDetail();
  };
  const onKey = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    pickIt();
  };
  const picked = row === detail.row ? "picked" : "";
  const verdict = value.origin ? `${value.status}, ${value.origin}` : value.status;
  return element("tr", { class: `pick ${picked}`, tabindex: "0", click: pickIt, keydown: onKey },
    element("td", { class: "mono" }, value.slot),
    element("td", { class: "mono dim" }, ...breakable(kindOfValue(value))),
    element("td", { class: value.origin ?? value.status }, verdict),
    element("td", { class: "right" }, digits(value.error)));
}

function valueParts(operation, value) {
  const name = () => span("mono", value.slot);
  const errors = errorFacts(value), largest = largestErrors(value);
  const by = value.count ? ", element by element" : "";
  return [
    ...(errors.length ? [title("How ", name(), ` differs${by}`), facts(errors)] : []),
    ...(largest.length ? [title("Largest errors of ", name()), facts(largest)] : []),
    title("Both sides of ", name()), sidesTable(operation, value),
  ];
}

function errorFacts(value) {
  const has = (key) => value[key] !== null && value[key] !== undefined;
  const shown = (key, format = digits) => (has(key) ? format(value[key]) : "");
  const counted = (key) => {
    if (!has(key) || !value.count) return "";
    const of = `of ${grouped(value.count)}`;
    const count = value[key];
    return count ? `${grouped(count)} ${of} (${percent(count, value.count)})` : `none ${of}`;
  };
  const share = (ratio) => `${percent(ratio, 1)} of elements`;
  const all = [
    ["relative error", shown("error")],
    ["out of tolerance", counted("mismatches")],
    ["not the same", counted("unequal")],
    ["mean abs error", shown("mean_abs_err")],
    ["99.9 % below", shown("p999_abs_err")],
    ["RMSE", shown("rmse")],
    ["relative L2", shown("relative_l2")],
    ["cosine", shown("cosine", (cosine) => String(Number(cosine.toPrecision(7))))],
    ["largest ULP distance", shown("max_ulp")],
    ["signs flipped", shown("sign_flips", grouped)],
    ["rel. error < 0.1 %", shown("ratio_1e3", share)],
    ["rel. error < 0.5 %", shown("ratio_5e3", share)],
    ["first NaN/Inf apart", shown("first_nonfinite", (index) => `at ${index}`)],
  ];
  return all.filter(([, text]) => text !== "");
}

function largestErrors(value) {
  const found = [["abs. error", "max_abs"], ["rel. error", "max_rel"]];
  return found.filter(([, key]) => value[`${key}_err`] > 0).map(([name, key]) => {
    const index = value[`${key}_index`];
    const both = `${exact(value[`${key}_target`])}, reference ${exact(value[`${key}_reference`])}`;
    const error = element("b", { class: "number" }, digits(value[`${key}_err`]));
    return [name, span("", error, index ? span("mono", ` at ${index}`) : "", element("br"), span("dim", both))];
  });
}

const sides = [
  ["type", "dtype"], ["shape", "shape"], ["value", "value"], ["max", "max"], ["min", "min"],
  ["mean", "mean"], ["norm", "norm"], ["NaN", "nan"], ["Inf", "inf"],
  ["requires grad", "requires_grad"], ["checksum", "md5"], ["file", "file"],
];

function sidesTable(operation, value) {
  // Names of files are kept without what the value's own name says.
  const whole = (file) => (file?.startsWith(".") ? `${operation.name}.${value.slot}${file}` : file);
  const read = (side, key) => (key === "file" ? whole(value[`${side}_file`]) : value[`${side}_${key}`]) ?? null;
  const rows = sides
    .map(([name, key]) => [name, read("target", key), read("reference", key), key !== "file"])
    .filter(([, target, reference]) => target !== null || reference !== null)
    .map((row) => sidesRow(...row));
  if (!rows.length) return element("p", { class: "dim" }, "nothing is known of it");
  return table(["", "|target", "|reference", "|difference"], rows);
}

function sidesRow(name, target, reference, canDiffer) {
  const isNumber = typeof (target ?? reference) === "number";
  const isApart = canDiffer && !Object.is(target, reference);
  const isText = typeof (target ?? reference) === "string";
  const side = (value, mood) => element("td", {
    class: `right ${isNumber ? "" : "mono"} ${mood}`, title: isNumber ? exact(value) : null,
  }, isText ? value ?? "–" : digits(value));
  const isKnown = target !== null && reference !== null;
  const change = isNumber && isApart && isKnown ? digits(target - reference) : "";
  return element("tr", {}, element("td", { class: "dim" }, name), side(target, isApart ? "apart" : ""),
    side(reference, ""), element("td", { class: "right dim" }, change));
}
