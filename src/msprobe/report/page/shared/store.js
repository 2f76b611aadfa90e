// SPDX-License-Identifier: Apache-2.0
// What the page shows: the view, what is selected, searched and filtered. Only texts, so that a URL can hold all of it.

/** @type {Record<string, string>} */
export const state = {};
/** @type {Record<string, string>} */
export const defaults = {};
/** @type {((changed: Set<string>) => void)[]} */
const listeners = [];

/** Adds names to the state, with their defaults. @param {Record<string, string>} part */
export function declare(part) {
  Object.assign(defaults, part);
  Object.assign(state, part);
}

/**
 * Changes part of the state and tells all listeners which names have changed; returns whether any has.
 * @param {Record<string, string>} part
 */
export function change(part) {
  const changed = new Set(Object.keys(part).filter((name) => Object.hasOwn(state, name) && state[name] !== part[name]));
  for (const name of changed) state[name] = part[name];
  if (changed.size) listeners.forEach((listener) => listener(changed));
  return changed.size > 0;
}

/** @param {(changed: Set<string>) => void} listener */
export function listen(listener) { listeners.push(listener); }

/** Returns the words of a name that holds several, such as a filter. @param {string} name */
export function words(name) { return (state[name] ?? "").split(",").filter(Boolean); }

/** Adds a word to a name that holds several, or takes it away. @param {string} name @param {string} word */
export function toggled(name, word) {
  const held = words(name);
  return (held.includes(word) ? held.filter((each) => each !== word) : [...held, word]).join(",");
}
