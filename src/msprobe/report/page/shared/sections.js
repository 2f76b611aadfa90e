// SPDX-License-Identifier: Apache-2.0
// The data of the page, by section. Tables are kept by column; columns of texts hold places in one list of all texts.
// The other side of this is page_file.py.

import { byId } from "./dom.js";

/** @type {Record<string, any>} */
export const sections = JSON.parse(byId("data").textContent);
const textColumns = new Set(sections.text_columns);

/** Returns a number; JSON has only words for NaN and infinities. @param {any} value */
export function number(value) {
  if (typeof value !== "string") return value;
  return value === "NaN" ? NaN : value === "Infinity" ? Infinity : -Infinity;
}

/**
 * Returns a function from the place of a row to its value in a column; null where there is none.
 * @param {string} table
 * @param {string} name
 * @returns {(place: number) => any}
 */
export function column(table, name) {
  const cells = sections[table]?.[name];
  if (!cells) return () => null;
  const read = textColumns.has(name) ? (/** @type {number} */ text) => sections.texts[text] : number;
  const isSame = cells.length === 1; // the same value in all rows
  return (place) => {
    const value = cells[isSame ? 0 : place];
    return value === null || value === undefined ? null : read(value);
  };
}

/**
 * Returns a function from the place of a row to all its values.
 * @param {string} table
 * @returns {(place: number) => any}
 */
export function rows(table) {
  const columns = Object.keys(sections[table] ?? {}).map((name) => /** @type {const} */ ([name, column(table, name)]));
  return (place) => Object.fromEntries(columns.map(([name, read]) => [name, read(place)]));
}
