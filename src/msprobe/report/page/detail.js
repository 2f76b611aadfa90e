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
  const box = byId("detail");
  replace(box, crumbs(operation),
    element("h2", { class: "mono" }, ...breakable(operation.name), " ", copyButton(operation.name)),
    element("div", {}, pill(value.status, words.statuses[value.status]),
      value.origin ? pill(value.origin, words.origins[value.origin]) : null,
      value.origin ? element("span", { class: "dim" }, words.origins[value.origin]) : element("span", { class: "dim" }, words.statuses[value.status])),
    value.reason ? element("p", { class: `why ${value.origin ?? ""}` }, value.reason) : null,
    element("h3", {}, "Where"), whereFacts(operation, value), stackOf(operation),
    element("h3", {}, `Values of this operation (${operation.rows})`), valueTable(operation),
    ...valueParts(operation, value));
  box.scrollTop = 0;
}

function crumbs(operation) {
  const step = (by) => {
    const other = operations[operation.place + by];
    return other && `${other.step}/${other.rank}` === `${operation.step}/${operation.rank}` ? other : null;
  };
  const link = (text, other, title) => other && element("button", { type: "button", class: "link", title, click: () => openOperation(other) }, text);
  return element("div", { class: "crumbs" },
    element("button", { type: "button", class: "link", title: "Escape", click: closeDetail }, "← overview"),
    link("ran before", step(-1), step(-1)?.name), link("ran after", step(1), step(1)?.name),
    link("next introduced", nextIntroduced(1), "n"));
}

function nextIntroduced(by) {
  const found = operations.filter((each) => each.origin === "introduced" && inComparison(each));
  if (!found.length) return null;
  const here = detail.operation ? found.indexOf(detail.operation) : -1;
  if (here >= 0) return found.length > 1 ? found[(here + by + found.length) % found.length] : null;
  return found.find((each) => each.interest < 0 && each.culprit === summary.introduced[0]) ?? found[0];
}

function whereFacts(operation, value) {
  const module = operation.module && element("button", {
    type: "button", class: "link", title: "show this module only",
    click: () => { filters.module = operation.module; revealModule(operation.module); refresh(); },
  }, operation.module);
  const pairing = operation.match === "exact" ? "" : operation.match === "unmatched" ? "no partner" : `${operation.match}, confidence ${digits(operation.confidence)}`;
  return facts([
    ["module", module || "outside of modules"],
    ["source", operation.source && element("span", { class: "mono" }, operation.source)],
    ["kind", value.kind.replace("_", " ")],
    ["run", severalComparisons ? placeName(operation.step, operation.rank) : ""],
    ["order", `${grouped(operation.order)} in the execution`],
    ["paired by", pairing],
    ["target's name", value.target_name], ["reference's name", value.reference_name],
  ]);
}

function stackOf(operation) {
  const stack = operation.culprit?.stack ?? [];
  if (stack.length < 2) return null;
  return element("details", {}, element("summary", { class: "dim" }, `call stack, ${plural(stack.length, "frame")}`),
    element("ol", { class: "plain-list mono" }, ...stack.map((frame) => element("li", {}, frame))));
}

// Type and shape of a tensor, the value of anything else; of both sides where they are different.
function kindOfValue(value) {
  const isTensor = (value.target_shape ?? value.reference_shape ?? null) !== null;
  const side = (name) => (isTensor ? `${value[`${name}_dtype`] ?? ""}${(value[`${name}_shape`] ?? "").replaceAll(" ", "")}` : value[`${name}_value`] ?? "");
  const [target, reference] = [side("target"), side("reference")];
  return !target || !reference || target === reference ? target || reference : `${target}, reference ${reference}`;
}

function valueTable(operation) {
  const rows = [];
  for (let row = operation.first; row < operation.first + operation.rows; row += 1) {
    const value = readValue(row);
    const pick = () => { detail.row = row; drawDetail(); };
    rows.push(element("tr", {
      class: `pick ${row === detail.row ? "picked" : ""}`, tabindex: "0", click: pick,
      keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); pick(); } },
    },
    element("td", { class: "mono" }, value.slot),
    element("td", { class: "mono dim" }, kindOfValue(value)),
    element("td", { class: value.origin ?? value.status }, value.origin ? `${value.status}, ${value.origin}` : value.status),
    element("td", { class: "right" }, digits(value.error))));
  }
  return element("div", { class: "scroll" }, element("table", { class: "values" },
    element("thead", {}, headings("value", "type", "status", "|error")), element("tbody", {}, ...rows)));
}

// A title that begins with a bar stands right, above numbers.
function headings(...titles) {
  return element("tr", {}, ...titles.map((title) => element("th", { class: title.startsWith("|") ? "right" : "", scope: "col" }, title.replace("|", ""))));
}

function valueParts(operation, value) {
  const parts = [];
  const name = element("span", { class: "mono" }, value.slot);
  const errors = errorFacts(value);
  if (errors.length) parts.push(element("h3", {}, "How ", name, " differs", value.count ? ", element by element" : ""), facts(errors));
  const worst = worstElements(value);
  if (worst.length) parts.push(element("h3", {}, "Largest errors of ", name.cloneNode(true)), facts(worst));
  parts.push(element("h3", {}, "Both sides of ", name.cloneNode(true)), sidesTable(operation, value));
  return parts;
}

function errorFacts(value) {
  const of = value.count ? ` of ${grouped(value.count)}` : "";
  const counted = (count) => {
    if (count === null || count === undefined || !value.count) return null;
    return count ? `${grouped(count)}${of} (${percent(count, value.count)})` : `none${of}`;
  };
  const shown = (key, format = digits) => (value[key] === null || value[key] === undefined ? null : format(value[key]));
  const all = [
    ["relative error", shown("error")],
    ["out of tolerance", counted(value.mismatches)],
    ["not the same", counted(value.unequal)],
    ["mean abs error", shown("mean_abs_err")], ["99.9 % below", shown("p999_abs_err")],
    ["RMSE", shown("rmse")], ["relative L2", shown("relative_l2")],
    ["cosine", shown("cosine", (number_) => String(Number(number_.toPrecision(7))))],
    ["largest ULP distance", shown("max_ulp")], ["signs flipped", shown("sign_flips", grouped)],
    ["rel. error < 0.1 %", value.ratio_1e3 === null || value.ratio_1e3 === undefined ? null : `${percent(value.ratio_1e3, 1)} of elements`],
    ["rel. error < 0.5 %", value.ratio_5e3 === null || value.ratio_5e3 === undefined ? null : `${percent(value.ratio_5e3, 1)} of elements`],
    ["first NaN/Inf apart", value.first_nonfinite && `at ${value.first_nonfinite}`],
  ];
  return all.filter(([, text]) => text !== null && text !== undefined && text !== "");
}

function worstElements(value) {
  return [["abs. error", "max_abs"], ["rel. error", "max_rel"]]
    .filter(([, key]) => value[`${key}_err`] > 0)
    .map(([label, key]) => [label, element("span", {}, element("b", { class: "number" }, digits(value[`${key}_err`])),
      value[`${key}_index`] ? element("span", { class: "mono" }, ` at ${value[`${key}_index`]}`) : "",
      element("br"), element("span", { class: "dim" }, `${exact(value[`${key}_target`])}, reference ${exact(value[`${key}_reference`])}`))]);
}

function sidesTable(operation, value) {
  const fullFile = (file) => (file?.startsWith(".") ? `${operation.name}.${value.slot}${file}` : file);
  value.target_file = fullFile(value.target_file);
  value.reference_file = fullFile(value.reference_file);
  const wanted = [
    ["type", "dtype"], ["shape", "shape"], ["value", "value"], ["max", "max"], ["min", "min"], ["mean", "mean"],
    ["norm", "norm"], ["NaN", "nan"], ["Inf", "inf"], ["requires grad", "requires_grad"], ["checksum", "md5"], ["file", "file"],
  ];
  const rows = [];
  for (const [label, key] of wanted) {
    const target = value[`target_${key}`] ?? null, reference = value[`reference_${key}`] ?? null;
    if (target === null && reference === null) continue;
    const isNumber = typeof (target ?? reference) === "number";
    const isApart = target !== reference && key !== "file" && !(Number.isNaN(target) && Number.isNaN(reference));
    const show = (side) => (side === null ? "–" : isNumber ? digits(side) : typeof side === "boolean" ? digits(side) : side);
    const change = isNumber && target !== null && reference !== null && isApart ? digits(target - reference) : "";
    rows.push(element("tr", {}, element("td", { class: "dim" }, label),
      element("td", { class: `right ${isNumber ? "" : "mono"} ${isApart ? "apart" : ""}`, title: isNumber ? exact(target) : null }, show(target)),
      element("td", { class: `right ${isNumber ? "" : "mono"}`, title: isNumber ? exact(reference) : null }, show(reference)),
      element("td", { class: "right dim" }, change)));
  }
  if (!rows.length) return element("p", { class: "dim" }, "nothing is known of it");
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, headings("", "|target", "|reference", "|difference")), element("tbody", {}, ...rows)));
}
