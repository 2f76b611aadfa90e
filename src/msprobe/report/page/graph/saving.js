// SPDX-License-Identifier: Apache-2.0
// Files that the page hands to its reader, and takes from them.

import { element } from "../shared/dom.js";

/** Saves a file where the browser puts downloads. @param {string} name @param {Blob} content */
export function saveFile(name, content) {
  const address = URL.createObjectURL(content);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Returns the text of a file that the reader chooses. @returns {Promise<string>} */
export function chooseFile() {
  return new Promise((resolve) => {
    const box = element("input", { type: "file", accept: ".json,.config,.yaml,.yml", change: () => box.files[0]?.text().then(resolve) });
    box.click();
  });
}
