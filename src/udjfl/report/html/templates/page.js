"use strict";
// Sorting, filtering and hover. Without scripts the page shows the same numbers.
(() => {
  const cellValue = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.v === undefined ? NaN : Number(cell.dataset.v);
    return Number.isNaN(number) ? cell.textContent.trim() : number;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      heading.firstElementChild.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        for (const other of headings) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => compare(cellValue(a, column), cellValue(b, column)) * (down ? -1 : 1));
        table.tBodies[0].append(...rows);
      });
    });
  }
  for (const input of document.querySelectorAll("input[data-filters]")) {
    const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
    const count = document.getElementById(`${input.dataset.filters}-count`);
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = wanted ? `${shown} of ${rows.length}` : "";
    });
  }
  const tip = document.getElementById("tip");
  let marked = null;
  const hide = () => {
    tip.hidden = true;
    if (marked) marked.classList.remove("on");
    marked = null;
  };
  const show = (mark) => {
    hide();
    marked = mark;
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const left = Math.min(at.right + 8, innerWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 8 ? above : at.bottom + 8}px`;
  };
  for (const chart of document.querySelectorAll(".chart")) {
    const marks = [...chart.querySelectorAll("[data-tip]")];
    chart.addEventListener("pointerover", (event) => {
      const mark = event.target.closest("[data-tip]");
      if (mark) show(mark);
    });
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      if (event.key === "Escape") hide();
      if (!(event.key in steps) || !marks.length) return;
      event.preventDefault();
      const from = marks.indexOf(marked);
      const next = from < 0 ? 0 : (from + steps[event.key] + marks.length) % marks.length;
      show(marks[next]);
    });
  }
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("#rounds > details")) details.open = true;
  });
})();
