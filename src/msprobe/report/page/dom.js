// SPDX-License-Identifier: Apache-2.0
// Elements and texts. Nothing from the data is ever read as markup.

const byId = (id) => document.getElementById(id);
const glyphs = {
  introduced: "◆", amplified: "▲", input: "▶", inherited: "●", agrees: "○", nonfinite: "✕",
  other: "■", unmatched: "□", missing: "−", added: "+",
};

// element("p", {class: "dim"}, "text", child): attributes that are functions listen.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function replace(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

// Four digits, as people read them.
function digits(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return grouped(value);
  if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(4)));
  return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
}

function exact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return digits(value);
  const size = Math.abs(value);
  return size === 0 || (size >= 1e-4 && size < 1e9) ? String(value) : value.toExponential().replace("e+", "e");
}

function grouped(value) { return value.toLocaleString("en-US"); }
function percent(part, whole) {
  const share = 100 * part / whole;
  return part === whole ? "100 %" : share > 99.9 ? "> 99.9 %" : `${share < 0.001 ? "< 0.001" : digits(share)} %`;
}
function plural(count, noun) { return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`; }
function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit ? size.toFixed(1) : size} ${units[unit]}`;
}

function span(className, ...children) { return element("span", { class: className }, ...children); }
function title(...children) { return element("h3", {}, ...children); }
function items(texts, className = "plain-list") {
  return element("ul", { class: className }, ...texts.map((text) => element("li", {}, text)));
}
function folded(heading, ...children) {
  return element("details", {}, element("summary", { class: "dim" }, heading), ...children);
}
function link(text, click, more = {}) {
  return element("button", { type: "button", class: "link", click, ...more }, text);
}

function mark(group, meaning = words.origins[group] ?? group) {
  const attributes = { class: `mark ${group}`, title: meaning, "aria-hidden": "true" };
  return element("span", attributes, glyphs[group] ?? glyphs.agrees);
}

// What is known, with dots between.
function joined(...parts) { return parts.filter(Boolean).join(" · "); }

// A title that begins with a bar stands right, above numbers.
function headings(titles) {
  return element("tr", {}, ...titles.map((text) => {
    const attributes = { class: text.startsWith("|") ? "right" : "", scope: "col" };
    return element("th", attributes, text.replace("|", ""));
  }));
}

function table(titles, rows) {
  const parts = [element("thead", {}, headings(titles)), element("tbody", {}, ...rows)];
  return element("div", { class: "scroll" }, element("table", {}, ...parts));
}

// A name that may be broken after its dots and underscores, not within words.
function breakable(name) {
  const pieces = name.split(/(?<=[._/,])/);
  return pieces.flatMap((piece, place) => (place ? [document.createElement("wbr"), piece] : [piece]));
}

function pill(word, meaning) { return element("span", { class: `pill ${word}`, title: meaning }, word); }

function copyButton(text) {
  const button = element("button", { type: "button", class: "copy", click: () => copy(text, button) }, "copy");
  return button;
}

// A file opened by double click is no secure context everywhere: there the old way is left.
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1200);
}

function command(text) {
  return element("div", { class: "command" }, element("code", {}, text), copyButton(text));
}

function facts(pairs) {
  const list = element("dl", { class: "facts" });
  for (const [label, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") list.append(element("dt", {}, label), element("dd", {}, value));
  }
  return list;
}
