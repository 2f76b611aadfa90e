// SPDX-License-Identifier: Apache-2.0
// The language of the page's own words. Code says everything in English; chinese.js has the translations.

import { causes, chinese } from "./chinese.js";

const key = "msprobe-language";

function kept() {
  try { return window.localStorage.getItem(key); } catch { return null; }
}

// Known before the state is: views say things while they are built.
const asked = new URLSearchParams(window.location.hash.slice(1)).get("lang") || kept() || navigator.language;

export const language = asked.startsWith("zh") ? "zh" : "en";

/**
 * Returns a text in the reader's language: `say("{} nodes", 7)`.
 * @param {string} text in English, with {} where values go
 * @param {...(string | number)} values
 */
export function say(text, ...values) {
  let place = 0;
  return (language === "zh" ? chinese[text] ?? text : text).replace(/\{\}/g, () => String(values[place++] ?? ""));
}

/**
 * Returns the class of a cause and how well it is founded, in front of a sentence in English; empty for readers of English.
 * @param {string | undefined} kind @param {string | undefined} confidence
 */
export function causeFirst(kind, confidence) {
  if (language !== "zh" || !kind || !causes[kind]) return "";
  return `${causes[kind]}${confidence ? `（${say(confidence)}）` : ""}：`;
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
