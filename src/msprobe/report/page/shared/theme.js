// SPDX-License-Identifier: Apache-2.0
// Light or dark: as the system has it, until the reader chooses the other. The choice is kept for all pages.
// Paper is light.

import { isPaper, onPaper } from "./paper.js";

const key = "msprobe-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
/** @type {(() => void)[]} */
const listeners = [];

// Browsers may refuse to keep anything for a page that is a file.
function chosen() {
  try { return window.localStorage.getItem(key); } catch { return null; }
}

/** @param {string} theme */
function keep(theme) {
  try {
    if (theme === fromSystem()) window.localStorage.removeItem(key);
    else window.localStorage.setItem(key, theme);
  } catch { /* the theme holds until the page is closed */ }
}

function fromSystem() { return system.matches ? "dark" : "light"; }

/** @param {string} theme */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  listeners.forEach((listener) => listener());
}

export function toggleTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  keep(theme);
  setTheme(theme);
}

/** Calls back after each change of the theme. @param {() => void} listener */
export function onTheme(listener) { listeners.push(listener); }

/** Returns a colour of the theme. @param {string} name */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function startTheme() {
  const update = () => setTheme(isPaper() ? "light" : chosen() ?? fromSystem());
  update();
  system.addEventListener("change", update);
  onPaper(update);
}
