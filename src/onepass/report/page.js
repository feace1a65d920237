"use strict";
// A click on a heading sorts its table: numbers with the largest first, texts by the alphabet, again the other way round.
for (const button of document.querySelectorAll("table.sorts th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, column = heading.cellIndex, body = heading.closest("table").tBodies[0];
    const rows = [...body.rows], cell = (row) => row.cells[column];
    const numeric = rows.some((row) => "v" in cell(row).dataset);
    const first = numeric ? "descending" : "ascending";
    const order = heading.ariaSort === first ? (numeric ? "ascending" : "descending") : first;
    const sign = order === "ascending" ? 1 : -1;
    rows.sort((a, b) => {
      const [x, y] = [cell(a), cell(b)].map((c) => (numeric ? ("v" in c.dataset ? Number(c.dataset.v) : null) : c.textContent));
      if (x === null || y === null) return (x === null) - (y === null); // what is not known comes last
      return sign * (numeric ? x - y : x.localeCompare(y, "en"));
    });
    body.append(...rows);
    for (const other of heading.parentElement.cells) if (other.ariaSort) other.ariaSort = other === heading ? order : "none";
  });
}
