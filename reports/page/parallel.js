// Parallel coordinates of the complete search trials, the color of trials by a column, and ranges along the axes.
const HEIGHT = { top: 44, bottom: 26, whole: 300 }; // pixels
const BESIDE = { left: 64, right: 80, least: 72 }; // the axes, and from one to the next: room for their texts
const MEASURED = ["val_accuracy", "train_seconds", "peak_memory_bytes"];
const searchRows = details.number.map((_, row) => row).filter((row) => textOf(row, "Phase") === "search" && textOf(row, "Outcome") === details.complete);

// The place of each row on the scale of a column, 0 to 1: of numbers linear, or logarithmic for batch sizes and over
// more than a factor of 20, of texts in their order.
const makeScale = (column) => {
  if (column.keys) {
    const known = searchRows.map((row) => column.keys[row]).filter((key) => key !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const isLog = low > 0 && (high > 20 * low || column.name.includes("batch"));
    const bend = isLog ? Math.log : (value) => value;
    const place = (value) => (value === null || (isLog && value <= 0) ? NaN : (bend(value) - bend(low)) / (bend(high) - bend(low)));
    const ends = [low, high].map((end) => [place(end), column.texts[column.keys.indexOf(end)]]);
    return { of: (row) => place(column.keys[row]), ends: high > low ? ends : [] };
  }
  const values = [...new Set(searchRows.map((row) => column.texts[row]))].sort();
  const place = (text) => values.indexOf(text) / (values.length - 1);
  return { of: (row) => place(column.texts[row]), ends: values.length > 1 ? values.map((text) => [place(text), text]) : [] };
};
const axes = details.columns
  .map((column, index) => ({ column, index, isUsed: column.group === "setting" || MEASURED.includes(column.name) }))
  .filter(({ isUsed }) => isUsed && searchRows.length > 1)
  .map((axis) => ({ ...axis, scale: makeScale(axis.column) }))
  .filter(({ scale }) => scale.ends.length > 1);
const axisOf = (index) => axes.find((axis) => axis.index === index);

// the part of the color scale that stands out from the ground of the theme
const mix = (place) => {
  const [first, last] = ["--hue-first", "--hue-last"].map((name) => Number(color(name)));
  const share = first + place * (last - first);
  const position = share * (details.scale.length - 1);
  const index = Math.min(Math.floor(position), details.scale.length - 2);
  const [from, to] = [index, index + 1].map((place) => [1, 3, 5].map((at) => parseInt(details.scale[place].slice(at, at + 2), 16)));
  return `rgb(${from.map((part, place) => Math.round(part + (position - index) * (to[place] - part))).join(",")})`;
};
const colorOf = (row) => {
  const axis = axisOf(state.color);
  const place = axis ? axis.scale.of(row) : NaN;
  return Number.isFinite(place) ? mix(place) : color("--quiet");
};
// the marks of search trials in the color of the chosen column
const colored = (trace) => {
  if (state.color === null || !trace.customdata || trace.mode !== "markers" || !details.colored.includes(trace.meta)) return trace;
  return { ...trace, marker: { ...trace.marker, color: trace.customdata.map((number) => colorOf(rowOf.get(number))) } };
};

const brushTests = () => Object.entries(state.brushes).map(([index, [low, high]]) => {
  const { scale } = axisOf(Number(index));
  return (row) => scale.of(row) >= low && scale.of(row) <= high;
});
const setBrush = (index, range) => {
  if (range) state.brushes[index] = range;
  else delete state.brushes[index];
  applyFilters();
};
const startBrush = (event, axis, up, down) => {
  const { top } = event.currentTarget.ownerSVGElement.getBoundingClientRect();
  const share = (moved) => Math.min(1, Math.max(0, (down - (moved.clientY - top)) / (down - up)));
  const [grip, first] = [event.currentTarget, share(event)];
  grip.setPointerCapture(event.pointerId);
  grip.onpointerup = (end) => {
    grip.onpointerup = null;
    const range = [first, share(end)].sort((a, b) => a - b);
    setBrush(axis.index, range[1] - range[0] > 0.02 ? range : null);
  };
};

const drawAxis = (axis, x, isLow, up, down) => {
  const at = (share) => down - share * (down - up);
  const parts = [makeShape("line", { x1: x, x2: x, y1: up, y2: down, class: "axis" })];
  parts.push(makeShape("text", { x, y: isLow ? up - 10 : up - 26, "text-anchor": "middle", "font-weight": 600 }, axis.column.label));
  const shown = axis.scale.ends.length <= 8 ? axis.scale.ends : [axis.scale.ends[0], axis.scale.ends.at(-1)];
  for (const [share, text] of shown) parts.push(makeShape("text", { x: x + 5, y: at(share) + (axis.column.keys && share === 0 ? 14 : 4) }, text));
  const range = state.brushes[axis.index];
  if (range) parts.push(makeShape("rect", { x: x - 7, width: 14, y: at(range[1]), height: at(range[0]) - at(range[1]), class: "brush" }));
  const grip = makeShape("rect", { x: x - 12, width: 24, y: up, height: down - up, class: "grip", "data-column": axis.index });
  grip.addEventListener("pointerdown", (event) => startBrush(event, axis, up, down));
  return [...parts, grip];
};
const drawParallel = () => {
  const box = byId("parallel-plot");
  if (!box || axes.length < 2 || isFolded(box)) return;
  const [up, down] = [HEIGHT.top, HEIGHT.whole - HEIGHT.bottom];
  const sides = BESIDE.left + BESIDE.right;
  const width = Math.max(box.clientWidth, sides + BESIDE.least * (axes.length - 1)); // the box scrolls where it is narrower
  const xOf = (index) => BESIDE.left + ((width - sides) * index) / (axes.length - 1);
  const picture = makeShape("svg", { class: "parallel", width, height: HEIGHT.whole, viewBox: `0 0 ${width} ${HEIGHT.whole}`, role: "img", "aria-label": `Parallel coordinates of ${searchRows.length} trials: ${axes.map(({ column }) => column.label).join(", ")}` });
  const isChosen = (row) => state.chosen !== null && details.family[row] === familyOf(state.chosen);
  const order = (row) => 2 * isChosen(row) + isShown(details.number[row]);
  for (const row of [...searchRows].sort((a, b) => order(a) - order(b))) {
    const places = axes.map(({ scale }, index) => [xOf(index), down - scale.of(row) * (down - up)]).filter(([, y]) => Number.isFinite(y));
    const kind = isChosen(row) ? "chosen" : isShown(details.number[row]) ? "" : "faint";
    const line = makeShape("path", { d: `M${places.map((place) => place.map((value) => value.toFixed(1)).join(",")).join("L")}`, class: kind, "data-trial": details.number[row] });
    if (!kind) line.style.stroke = colorOf(row);
    picture.append(line);
  }
  axes.forEach((axis, index) => picture.append(...drawAxis(axis, xOf(index), index % 2 === 0, up, down)));
  box.replaceChildren(picture);
};
const startParallel = () => {
  const select = byId("color-by");
  if (!select) return;
  if (axes.length < 2) return;
  byId("parallel").hidden = false; // without a script it would be empty
  select.append(make("option", { value: "" }, "kind of trial"), ...axes.map(({ column, index }) => make("option", { value: index }, column.label)));
  select.addEventListener("change", () => {
    state.color = select.value === "" ? null : Number(select.value);
    redrawAll();
    writeAddress();
  });
  byId("brush-clear").addEventListener("click", () => { state.brushes = {}; applyFilters(); });
  byId("parallel-plot").addEventListener("click", ({ target }) => { if (target.dataset.trial) choose(Number(target.dataset.trial)); });
  addEventListener("resize", drawParallel);
};
