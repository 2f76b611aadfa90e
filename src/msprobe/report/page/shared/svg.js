// SPDX-License-Identifier: Apache-2.0
// Shapes of drawings.

/** @param {string} tag @param {Record<string, string | number>} attributes */
export function shape(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.textContent = text;
  return made;
}
