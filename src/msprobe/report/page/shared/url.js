// SPDX-License-Identifier: Apache-2.0
// The state in the part of the URL behind "#": a reload keeps it, "back" returns to the state before, links can be sent.

import { change, defaults, listen, state } from "./store.js";

// What is changed in quick succession, such as a word that is typed, makes one step of the history.
const settled_ms = 150;

let written = "";
/** @type {ReturnType<typeof setTimeout> | undefined} */
let waiting;

function toText() {
  const changed = Object.entries(state).filter(([name, value]) => value !== defaults[name]);
  return new URLSearchParams(changed).toString();
}

/** Takes over the state that the URL holds; what it does not name gets its default. */
function readUrl() {
  const text = window.location.hash.slice(1);
  // The event of our own writing comes late: a change made since then still waits to be written.
  if (text === written) return;
  clearTimeout(waiting);
  change({ ...defaults, ...Object.fromEntries(new URLSearchParams(text)) });
  clearTimeout(waiting);
  delete document.documentElement.dataset.urlWaits;
  written = toText();
}

// Through `location`, not `history`: files without a server may not use the latter everywhere.
function writeUrl() {
  delete document.documentElement.dataset.urlWaits;
  const text = toText();
  if (text === written) return;
  written = text;
  window.location.hash = text;
}

export function startUrl() {
  readUrl();
  listen(() => {
    clearTimeout(waiting);
    waiting = setTimeout(writeUrl, settled_ms);
    document.documentElement.dataset.urlWaits = ""; // for those who want to know that the URL is complete
  });
  window.addEventListener("hashchange", readUrl);
}
