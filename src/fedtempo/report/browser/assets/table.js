// Tables that sort by a click on a column's name, and long ones that can be searched. Marked up as table.sortable.
"use strict";

// What a cell sorts by: its data-value, else the first number in it, else its words.
FT.sortKey = (cell) => {
  const text = (cell.dataset.value ?? cell.textContent).trim();
  if (text === "" || text === "–") return null;
  const found = text.replace("−", "-").match(/^[≥≤<>~×+ ]*(-?[\d.]+(?:e[+-]?\d+)?)/i);
  const number = found === null ? NaN : Number(found[1]);
  return Number.isNaN(number) ? text.toLowerCase() : number;
};

FT.compareKeys = (one, other) => {
  if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
  return typeof one === "number" ? -1 : 1;
};

FT.sortable = (table) => {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const given = [...body.rows];
  heads.forEach((head, column) => {
    const button = FT.html("button", { type: "button", title: "Sort by this column" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const was = head.getAttribute("aria-sort");
      const next = was === "ascending" ? "descending" : was === "descending" ? null : "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      if (next !== null) head.setAttribute("aria-sort", next);
      const sign = next === "descending" ? -1 : 1;
      const keyed = given.map((row, place) => ({ row, place, key: FT.sortKey(row.cells[column]) }));
      if (next !== null) {
        keyed.sort((a, b) => {
          if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
          return sign * FT.compareKeys(a.key, b.key) || a.place - b.place;
        });
      }
      body.append(...keyed.map((one) => one.row));
    });
  });
  if (given.length > 12) {
    const search = FT.html("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows" });
    search.addEventListener("input", () => {
      const wanted = search.value.toLowerCase();
      for (const row of given) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    table.closest(".scroll").before(FT.html("p", {}, search));
  }
};

for (const table of document.querySelectorAll("table.sortable")) FT.sortable(table);
