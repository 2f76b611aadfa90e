// SPDX-License-Identifier: Apache-2.0
// Numbers as text for people.

import { language, say } from "./language.js";

/** Returns a value in four digits. @param {number | boolean | null | undefined} value */
export function digits(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return say(value ? "yes" : "no");
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return grouped(value);
  if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(4)));
  return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
}

/** Returns a value in all its digits. @param {number | null | undefined} value */
export function exact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return digits(value);
  const size = Math.abs(value);
  return size === 0 || (size >= 1e-4 && size < 1e9) ? String(value) : value.toExponential().replace("e+", "e");
}

const grouping = new Intl.NumberFormat("en-US");

/** @param {number} value */
export function grouped(value) { return grouping.format(value); }

/** @param {number} part @param {number} whole */
export function percent(part, whole) {
  const share = 100 * part / whole;
  if (part === whole) return "100 %";
  return share > 99.9 ? "> 99.9 %" : `${share < 0.001 ? "< 0.001" : digits(share)} %`;
}

/** @param {number} count @param {string} noun */
export function plural(count, noun) {
  const many = `{} ${noun}s`;
  return count === 1 && language === "en" ? `${count} ${noun}` : say(many, grouped(count));
}

/** @param {number} size */
export function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit ? size.toFixed(1) : size} ${units[unit]}`;
}
