// The table of runs: sorted by its heads, filtered by words, and the details that its links open.
const Runs = (() => {
  "use strict";
  const table = document.getElementById("runs-table");
  const filter = document.getElementById("runs-filter");
  const tell = document.getElementById("runs-count");

  function sortBy(button, descending) {
    const heads = [...table.tHead.rows[0].cells];
    const column = heads.indexOf(button.closest("th"));
    const key = (row) => {
      const cell = row.cells[column];
      const text = cell.dataset.sort ?? cell.textContent.trim();
      const number = text === "" ? NaN : Number(text);
      return [number, text];
    };
    const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
    rows.sort(([[x, s]], [[y, t]]) => {
      const missing = (s === "") - (t === "");
      if (missing) return missing; // what is not recorded comes last, whichever way
      const order = Number.isNaN(x) || Number.isNaN(y) ? s.localeCompare(t) : x - y;
      return descending ? -order : order;
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
    for (const head of heads) head.removeAttribute("aria-sort");
    button.closest("th").setAttribute("aria-sort", descending ? "descending" : "ascending");
  }

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    tell.textContent = words.length ? `${shown} of ${table.tBodies[0].rows.length}` : "";
  }

  function open() {
    const target = document.getElementById(location.hash.slice(1));
    if (target?.tagName === "DETAILS") target.open = true;
  }

  function start(kept) {
    for (const button of table.tHead.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        sortBy(button, button.closest("th").getAttribute("aria-sort") === "ascending");
      });
    }
    filter.addEventListener("input", apply);
    filter.value = kept.filter || "";
    apply();
    window.addEventListener("hashchange", open);
    open();
  }

  return { start, state: () => ({ filter: filter.value }) };
})();
