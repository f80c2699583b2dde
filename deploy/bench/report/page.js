// Tables that sort by a click on a heading. "#sort=2,3" in the address sorts the third table by its
// fourth column, so that a view can be linked to; "#sort=2,3,descending" the other way round.
"use strict";

const UNITS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, kB: 1e3, MB: 1e6, GB: 1e9, "%": 0.01 };

// The number at the start of a cell, in the unit that follows it; NaN for words.
function numberOf(text) {
  const found = text.replaceAll(",", "").match(/^[-+]?\d+(\.\d+)?(e[-+]?\d+)?\s*([^\s\d([–]+)?/i);
  return found ? parseFloat(found[0]) * (UNITS[found[3]] ?? 1) : NaN;
}

function compare(a, b) {
  const [x, y] = [numberOf(a), numberOf(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) {
    return Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b);
  }
  return x - y;
}

// Rows whose first cell is empty belong to the one above: the cell is filled, so that rows can move
// and a row that is scrolled sideways still says what it is about.
function fillFirstCells(body) {
  let above = "";
  for (const row of body.rows) {
    const cell = row.cells[0];
    if (!cell.textContent.trim()) cell.textContent = above;
    above = cell.textContent;
  }
}

function sortBy(table, column, descending) {
  const body = table.tBodies[0];
  const text = (row) => row.cells[column]?.textContent.trim() ?? "";
  const rows = [...body.rows].sort((a, b) => {
    // Rows without an entry stay last, whichever way the others go.
    if (!text(a) || !text(b)) return !text(a) - !text(b);
    return (descending ? -1 : 1) * compare(text(a), text(b));
  });
  body.append(...rows);
  for (const heading of table.tHead.rows[0].cells) heading.removeAttribute("aria-sort");
  const heading = table.tHead.rows[0].cells[column];
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

for (const table of document.querySelectorAll("table")) {
  fillFirstCells(table.tBodies[0]);
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    heading.addEventListener("click", () =>
      sortBy(table, column, heading.getAttribute("aria-sort") === "ascending"));
  });
}

function sortByAddress() {
  const found = location.hash.match(/^#sort=(\d+),(\d+)(,descending)?$/);
  const table = found && document.querySelectorAll("table")[found[1]];
  if (table?.tHead.rows[0].cells[found[2]]) sortBy(table, Number(found[2]), Boolean(found[3]));
}

window.addEventListener("hashchange", sortByAddress);
sortByAddress();
