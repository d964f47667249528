"use strict";
// Tables are sorted by their heads, and what is pointed at says its value. Without this script the page shows the same.

// --- Sorting: a head is a button; it sorts down, up, and back to the order in which the rows came.
const numeric = new Intl.Collator("en", { numeric: true });

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim().replace(/,/g, "");
  const number = Number(text);
  return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
}

function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null); // what is missing comes last, both ways
  const both = typeof one === "number" && typeof other === "number";
  return sign * (both ? one - other : numeric.compare(one, other));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 2) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const texts = rows.some((row) => typeof valueOf(row, column) === "string");
      const turns = texts ? ["none", "ascending", "descending"] : ["none", "descending", "ascending"];
      const turn = turns[(turns.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
      heads.forEach((each) => each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", turn);
      const sign = turn === "ascending" ? 1 : -1;
      const sorted = turn === "none" ? rows : [...rows].sort((a, b) => compare(valueOf(a, column), valueOf(b, column), sign));
      table.tBodies[0].append(...sorted);
    });
  });
}

// --- The box that says a value.
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("role", "status");

function say(parts, x, y) {
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const width = document.documentElement.clientWidth;
  const left = x + 14 + tip.offsetWidth > width - 4 ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = `${Math.max(4, left) + window.scrollX}px`;
  tip.style.top = `${y + 14 + window.scrollY}px`;
}

function silence() {
  tip.hidden = true;
  document.querySelectorAll(".cross").forEach((each) => each.remove());
}

// Marks: the titles that browsers show late, and never where there is no mouse, are said at once.
for (const title of document.querySelectorAll("svg title")) {
  const mark = title.parentElement;
  const words = title.textContent;
  mark.setAttribute("aria-label", words);
  title.remove();
  if (mark.classList.contains("line")) continue; // what is pointed at there is said of all lines together
  mark.addEventListener("pointerenter", (event) => say([words], event.clientX, event.clientY));
  mark.addEventListener("pointerleave", silence);
}

// Panels: the values of all lines at the nearest place, or the entry of a raster.
function entry(hover, column, row) {
  const { rows, columns, values, low, high, unit, says } = hover.raster;
  const step = values.charCodeAt(row * columns.length + column);
  const value = says ? says[step] : step === 255 ? "none" : `${Number((low + (step / 254) * (high - low)).toPrecision(3))}${unit}`;
  return [`${rows[row]}${columns[column] ? ` · ${columns[column]}` : ""}: ${value}`];
}

function shown(line) {
  const box = line.run === null ? null : document.getElementById(`run-${line.run}`);
  return !box || box.checked;
}

function linesAt(hover, x) {
  const found = [];
  for (const line of hover.lines.filter(shown)) {
    const point = line.points.find((each) => each[0] === x);
    if (point) found.push({ line, point });
  }
  found.sort((a, b) => b.point[1] - a.point[1]);
  const head = document.createElement("strong");
  head.textContent = `${hover.label} ${x}`;
  return [head, ...found.map(({ line, point }) => {
    const row = document.createElement("div");
    row.className = line.color;
    const name = row.appendChild(document.createElement("span"));
    const value = row.appendChild(document.createElement("span"));
    name.textContent = line.name;
    const written = (number, digits) => hover.decimals === null ? Number(number.toPrecision(digits)) : number.toFixed(hover.decimals);
    value.textContent = `${written(point[1], 4)}${point[2] ? ` ± ${written(point[2], 2)}` : ""}`;
    return row;
  })];
}

for (const svg of document.querySelectorAll("svg[data-hover]")) {
  const hover = JSON.parse(svg.dataset.hover);
  const [left, top, right, bottom] = hover.box;
  if (hover.raster) hover.raster.values = atob(hover.raster.entries);
  const toPage = (x, y) => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    return [box.left + x * scale, box.top + y * scale];
  };
  const across = (x) => left + (right - left) * (((hover.x[2] ? Math.log(x) : x) - hover.x[0]) / (hover.x[1] - hover.x[0]));
  let places = [];
  let at = -1;

  const showLines = (x) => {
    silence();
    const cross = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
    cross.setAttribute("class", "cross");
    cross.setAttribute("d", `M${across(x)},${top}V${bottom}`);
    say(linesAt(hover, x), ...toPage(across(x), top));
  };
  const point = (x, y) => {
    if (x < left - 4 || x > right + 4 || y < top || y > bottom) return silence();
    if (hover.raster) {
      const column = Math.min(hover.raster.columns.length - 1, Math.max(0, Math.floor(((x - left) / (right - left)) * hover.raster.columns.length)));
      const row = Math.min(hover.raster.rows.length - 1, Math.max(0, Math.floor(((y - top) / (bottom - top)) * hover.raster.rows.length)));
      return say(entry(hover, column, row), ...toPage(x, y));
    }
    places = [...new Set(hover.lines.filter(shown).flatMap((line) => line.points.map((each) => each[0])))].sort((a, b) => a - b);
    if (!places.length) return silence();
    at = places.reduce((best, each, index) => (Math.abs(across(each) - x) < Math.abs(across(places[best]) - x) ? index : best), 0);
    showLines(places[at]);
  };
  const pointed = (event) => {
    if (event.target !== svg && event.target.hasAttribute("aria-label") && !event.target.classList.contains("line")) return; // a mark that says its own
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    point((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
  };
  svg.addEventListener("pointermove", pointed);
  svg.addEventListener("pointerdown", pointed);
  svg.addEventListener("pointerleave", silence);
  svg.addEventListener("blur", silence);
  if (hover.lines) {
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") silence();
      if (!step) return;
      event.preventDefault();
      if (!places.length || at < 0) return point(step > 0 ? left : right, (top + bottom) / 2);
      at = Math.min(places.length - 1, Math.max(0, at + step));
      showLines(places[at]);
    });
  }
}
