// The columns of the table of groups: the reader chooses, and paper shows the same.
const Columns = (() => {
  "use strict";
  const table = document.getElementById("backends-table");
  const choice = document.getElementById("columns");
  const boxes = [...choice.querySelectorAll("input")];

  function apply() {
    table.dataset.without = boxes.filter((box) => !box.checked).map((box) => box.value).join(" ");
  }

  function start(kept) {
    choice.hidden = false;
    for (const box of boxes) {
      box.checked = !(kept.without || []).includes(box.value);
      box.addEventListener("change", apply);
    }
    apply();
  }

  return { start, state: () => ({ without: boxes.filter((box) => !box.checked).map((box) => box.value) }) };
})();
