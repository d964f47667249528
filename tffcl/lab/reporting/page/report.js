"use strict";
// Sorts tables by their heads, and shows the values under the pointer. Without this script, the page shows the same.

// --- Sorting: each head is a button, which sorts down, then up, then back to the original order of the rows.
const numeric = new Intl.Collator("en", { numeric: true });

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim().replace(/,/g, "");
  const number = Number(text);
  return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
}

function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null); // missing values come last in both directions
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

// --- The box that shows a value.
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

// Marks: shows titles at once; browsers show them late, and without a mouse never.
for (const title of document.querySelectorAll("svg title")) {
  const mark = title.parentElement;
  const words = title.textContent;
  mark.setAttribute("aria-label", words);
  title.remove();
  if (mark.classList.contains("line")) continue; // the values of all lines are shown together
  mark.addEventListener("pointerenter", (event) => say([words], event.clientX, event.clientY));
  mark.addEventListener("pointerleave", silence);
}

// Panels: the values of all lines at the nearest place.
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
  const across = new Map(hover.places);
  let values = [];
  let at = -1;

  const showLines = (value) => {
    silence();
    const cross = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
    cross.setAttribute("class", "cross");
    cross.setAttribute("d", `M${across.get(value)},${top}V${bottom}`);
    const place = new DOMPoint(across.get(value), top).matrixTransform(svg.getScreenCTM());
    say(linesAt(hover, value), place.x, place.y);
  };
  const point = ({ x, y }) => {
    if (x < left - 4 || x > right + 4 || y < top || y > bottom) return silence();
    const seen = new Set(hover.lines.filter(shown).flatMap((line) => line.points.map((each) => each[0])));
    values = [...across.keys()].filter((each) => seen.has(each));
    if (!values.length) return silence();
    const far = (value) => Math.abs(across.get(value) - x);
    at = values.reduce((best, each, index) => (far(each) < far(values[best]) ? index : best), 0);
    showLines(values[at]);
  };
  const pointed = (event) => {
    const own = event.target.closest("[aria-label]");
    if (own !== svg && !own.classList.contains("line")) return; // the mark shows its own text
    point(new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()));
  };
  svg.addEventListener("pointermove", pointed);
  svg.addEventListener("pointerdown", pointed);
  svg.addEventListener("pointerleave", silence);
  svg.addEventListener("blur", silence);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") silence();
    if (!step) return;
    event.preventDefault();
    if (!values.length || at < 0) return point({ x: step > 0 ? left : right, y: (top + bottom) / 2 });
    at = Math.min(values.length - 1, Math.max(0, at + step));
    showLines(values[at]);
  });
}

// Matrices: the colour of a pixel gives the value of an entry, as a step of the scale or as one of a few kinds.
const scale = document.querySelector("[data-scale]")?.dataset.scale.match(/.{6}/g) ?? [];
const steps = new Map(scale.map((color, step) => [color, step / (scale.length - 1)]));

for (const image of document.querySelectorAll("image[data-hover]")) {
  const { rows, columns = rows, kinds, ends, unit, nothing } = JSON.parse(image.dataset.hover);
  const source = new Image();
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  source.onload = () => {
    [paint.canvas.width, paint.canvas.height] = [source.width, source.height];
    paint.drawImage(source, 0, 0);
  };
  source.src = image.getAttribute("href");
  const entry = (column, row) => {
    const [red, green, blue, opacity] = paint.getImageData(column, row, 1, 1).data;
    const color = [red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("");
    if (!opacity) return nothing;
    return kinds ? kinds[color] : `${Number((ends[0] + steps.get(color) * (ends[1] - ends[0])).toPrecision(3))}${unit}`;
  };
  const pointed = (event) => {
    const box = image.getBoundingClientRect();
    const place = (share, names) => Math.min(names.length - 1, Math.max(0, Math.floor(share * names.length)));
    const column = place((event.clientX - box.left) / box.width, columns);
    const row = place((event.clientY - box.top) / box.height, rows);
    say([`${rows[row]} · ${columns[column]}: ${entry(column, row)}`], event.clientX, event.clientY);
  };
  image.addEventListener("pointermove", pointed);
  image.addEventListener("pointerdown", pointed);
  image.addEventListener("pointerleave", silence);
}
