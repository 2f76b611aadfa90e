// SPDX-License-Identifier: Apache-2.0
// The language of the page's own words. Code says everything in English; chinese.js has the translations.

import { chinese, sentences } from "./chinese.js";

const key = "msprobe-language";

function kept() {
  try { return window.localStorage.getItem(key); } catch { return null; }
}

// Known before the state is: views say things while they are built.
const asked = new URLSearchParams(window.location.hash.slice(1)).get("lang") || kept() || navigator.language;

export const language = asked.startsWith("zh") ? "zh" : "en";

// The sentences that have values: classes of causes first, then those with the most words.
const patterns = language === "zh" ? Object.entries(sentences).filter(([text]) => text.includes("{}"))
  .sort(([left], [right]) => weight(right) - weight(left))
  .map(([text, other]) => /** @type {const} */ ([text.split("{}"), pattern(text), other])) : [];

// Asked first: an expression with several values takes long to find that it does not fit a long text.
/** @param {string[]} parts @param {string} text */
function hasInOrder(parts, text) {
  let place = 0;
  return parts.every((part) => { const found = text.indexOf(part, place); place = found + part.length; return found >= 0; });
}

// A value reaches over no semicolon and no colon, but for the last one behind a colon.
/** @param {string} text */
function pattern(text) {
  const [end, ...parts] = text.split("{}").map(literal).reverse(), value = "((?:(?![;:] ).)*?)";
  return new RegExp(`^${parts.reverse().join(value)}${text.endsWith(": {}") ? "(.*)" : value}${end}$`);
}

/** @param {string} text */
function weight(text) { return /^[a-z ]+: \{\}$/.test(text) ? Infinity : text.replaceAll("{}", "").length; }

/** @param {string} text */
function literal(text) { return text.replace(/[.*+?^$()|[\]\\/]/g, "\\$&"); }

/** @param {string} text with {} or {2} where values go @param {(string | number)[]} values */
function fill(text, values) {
  let place = 0;
  return text.replace(/\{(\d*)\}/g, (_, number) => String(values[number ? Number(number) - 1 : place++] ?? ""));
}

/**
 * Returns a text in the reader's language: `say("{} nodes", 7)`. Texts that have their values in them already, as
 * verdicts and reasons, need no others: each is said after the sentence that fits it.
 * @param {string} text in English, with {} where values go
 * @param {...(string | number)} values
 */
export function say(text, ...values) {
  if (language !== "zh") return values.length ? fill(text, values) : text;
  return values.length ? fill(chinese[text] ?? text, values) : chinese[text] ?? sentence(text);
}

/** @param {string} text @returns {string} */
function sentence(text) {
  if (sentences[text] !== undefined || !text.includes(" ")) return sentences[text] ?? text;
  for (const [parts, pattern, other] of patterns) {
    const found = hasInOrder(parts, text) && pattern.exec(text);
    if (found) return fill(other, found.slice(1).map(sentence));
  }
  for (const [sign, other] of [["; ", "；"], [": ", "："], [", ", "，"]]) {
    const place = text.indexOf(sign), parts = [text.slice(0, place), text.slice(place + sign.length)];
    const told = place < 0 ? parts : parts.map(sentence);
    if (told.some((part, index) => part !== parts[index])) return told.join(other);
  }
  return text;
}

/** Changes between the languages; the page starts again with the same state. */
export function toggleLanguage() {
  const other = language === "zh" ? "en" : "zh";
  try { window.localStorage.setItem(key, other); } catch { /* the URL holds it */ }
  const words = new URLSearchParams(window.location.hash.slice(1));
  words.set("lang", other);
  window.location.hash = words.toString();
  window.location.reload();
}
