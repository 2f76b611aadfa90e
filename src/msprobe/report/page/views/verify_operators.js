// SPDX-License-Identifier: Apache-2.0
// The operators of one dump: how many of their results were judged, and their largest errors.

import { operators } from "../data/verify.js";
import { element, link, replace, table } from "../shared/dom.js";
import { digits, grouped } from "../shared/format.js";
import { change } from "../shared/store.js";

/** @type {import("../shared/shell.js").View} */
export const view = {
  name: "operators", title: "Operators", place: "main", needs: ["verify"], uses: [],
  start(pane) {
    const lines = operators().map(({ name, count, judged, faults, ratio, ulps }) => element("tr", {},
      element("td", { class: "mono" }, link(name, () => change({ operator: name, view: "list" }))),
      ...[grouped(count), grouped(judged), faults ? grouped(faults) : "", digits(ratio), digits(ulps)].map((text, place) => (
        element("td", { class: `right ${place === 2 ? "introduced" : ""}` }, text)))));
    replace(pane, table(["operator", "|results", "|judged", "|wrong or suspicious", "|over allowed", "|ulp"], lines));
    pane.classList.add("operators");
  },
  render() {},
};
