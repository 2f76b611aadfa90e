// SPDX-License-Identifier: Apache-2.0
// The calculator of cost.md. Its figures are the table of the page.
(() => {
  const TENSOR_SLOW_DOWN = 2.49; // GPT, level mix: docs/performance.md

  function figures() {
    const rows = [];
    for (const line of document.querySelectorAll("table tbody tr")) {
      const cells = [...line.cells].map((cell) => cell.textContent.trim());
      const [model, level, elements, plain, slowDown, records, statistics, tensor] = cells;
      const numbers = { elements, plain, slowDown, records, statistics, tensor };
      for (const name in numbers) numbers[name] = Number(numbers[name].replace(/[,×]/g, ""));
      rows.push({ model, level, ...numbers });
    }
    return rows;
  }

  function cost(row, task, plain, steps, records, elements) {
    const more = records / row.records;
    const tensor = task === "tensor";
    const slowDown = tensor ? Math.max(TENSOR_SLOW_DOWN, row.slowDown) : row.slowDown;
    // What a record costs does not depend on how long the user's own operators take.
    const added = row.plain * (slowDown - 1) * more;
    const values = tensor ? ((row.tensor - row.statistics) * elements) / row.elements : 0;
    const disk = (row.statistics + values) * more * steps;
    return { added, slowDown: 1 + added / plain, seconds: (added * steps) / 1000, disk };
  }

  function shown(number) {
    return Number(number.toPrecision(2)).toLocaleString("en");
  }

  function start() {
    const form = document.getElementById("cost");
    if (!form) return;
    const rows = figures();
    const choices = new Set(rows.map((row) => row.model));
    form.model.replaceChildren(...[...choices].map((model) => new Option(model)));
    const answer = () => {
      const has = (row) => row.model === form.model.value && row.level === form.level.value;
      const row = rows.find(has);
      const given = (name, other) => (form[name].value > 0 ? Number(form[name].value) : other);
      const [records, elements] = [given("records", row.records), given("elements", row.elements)];
      const [plain, steps] = [given("plain", row.plain), given("steps", 1)];
      const found = cost(row, form.task.value, plain, steps, records, elements);
      document.getElementById("cost-answer").textContent =
        `a recorded step takes about ${shown(plain + found.added)} ms ` +
        `(${shown(found.slowDown)} times a plain one); ${steps} of them add ` +
        `${shown(found.seconds)} s and need ${shown(found.disk)} MB of disk`;
    };
    form.oninput = answer;
    answer();
  }
  document.addEventListener("DOMContentLoaded", start);
})();
