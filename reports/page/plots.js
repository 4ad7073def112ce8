// The figures: filtered trials, the chosen trial on top, the chosen view.
const touch = !matchMedia("(hover: hover)").matches;
const config = {
  responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  displayModeBar: touch ? false : "hover", // without a pointer it would cover the data
  // Only these buttons: they send nothing, while Plotly can offer to upload a figure.
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};

const masked = (values, kept) => (Array.isArray(values) ? values.filter((_, index) => kept[index]) : values);
const filtered = (trace) => {
  if (state.shown === null || !trace.customdata || trace.type === "heatmap") return trace;
  const kept = trace.customdata.map(isShown);
  const own = { ...trace };
  for (const name of ["x", "y", "hovertext", "customdata"]) if (trace[name]) own[name] = masked(trace[name], kept);
  for (const name of ["error_x", "error_y"]) {
    if (!trace[name]) continue;
    own[name] = { ...trace[name], array: masked(trace[name].array, kept), arrayminus: masked(trace[name].arrayminus, kept) };
  }
  return own;
};

// The Pareto front of the marks that are shown: level from each mark until the next better one.
const frontOf = (trace, panel) => {
  const [xSign, ySign] = trace.front.signs;
  const shown = panel.traces.filter(({ meta }) => trace.front.of.includes(meta)).map(filtered);
  const places = shown.flatMap(({ x, y }) => x.map((value, index) => [value, y[index]]));
  places.sort((a, b) => xSign * (a[0] - b[0]) || ySign * (a[1] - b[1]));
  let best = Infinity;
  const front = places.filter(([, y]) => {
    const isBetter = ySign * y < best;
    if (isBetter) best = ySign * y;
    return isBetter;
  });
  const corners = front.flatMap((place, index) => (index ? [[place[0], front[index - 1][1]], place] : [place]));
  return { ...trace, x: corners.map(([x]) => x), y: corners.map(([, y]) => y) };
};
const refined = (trace, panel) => (trace.front && state.shown !== null ? frontOf(trace, panel) : filtered(trace));

const layoutOf = (plot) => {
  const panel = panelOf(plot);
  return themed({ ...panel.layout, uirevision: "same", ...(touch ? { dragmode: false } : {}) });
};
const hiddenLayers = (plot) => new Set((plot.dataset.off || "").split("\n").filter(Boolean));
const draw = (plot) => {
  const panel = panelOf(plot);
  if (isFolded(plot)) {
    plot.dataset.stale = "yes";
    return Promise.resolve();
  }
  const off = hiddenLayers(plot);
  const traces = panel.traces.map((trace) => ({ ...refined(trace, panel), visible: !off.has(trace.meta) }));
  return Plotly.react(plot, traces, layoutOf(plot), config);
};

// Only what is in view is drawn; the rest is stale until it comes into view.
const NEAR = 300; // pixels around the window that count as in view
const isFolded = (plot) => Boolean(plot.closest("[hidden], details:not([open])"));
const isInView = (plot) => {
  const { top, bottom } = plot.getBoundingClientRect();
  return !isFolded(plot) && bottom > -NEAR && top < innerHeight + NEAR;
};
let round = 0;
const drawStale = async () => {
  const own = ++round; // a later call takes over
  document.documentElement.dataset.drawn = "no";
  for (const plot of plots.filter((each) => each.dataset.stale && isInView(each))) {
    if (own !== round) return;
    await freshen(plot);
    await pause();
  }
  document.documentElement.dataset.drawn = "yes";
};
const freshen = async (plot) => {
  delete plot.dataset.stale;
  await draw(plot);
  if (!plot.dataset.ready) ready(plot);
};
const redrawAll = () => {
  for (const plot of plots) plot.dataset.stale = "yes";
  return drawStale();
};
const watchView = () => {
  const seen = new IntersectionObserver((entries) => {
    if (entries.some(({ isIntersecting, target }) => isIntersecting && target.dataset.stale)) drawStale();
  }, { rootMargin: `${NEAR}px` });
  for (const plot of plots) seen.observe(plot);
};
const ready = (plot) => {
  if (!plot.on) return; // nothing is drawn there
  plot.dataset.ready = "yes";
  plot.on("plotly_afterplot", () => drawRings(plot));
  drawRings(plot);
  plot.on("plotly_click", ({ points }) => {
    const number = points[0] && points[0].customdata;
    if (Number.isInteger(number) && number >= 0) choose(number);
  });
};

const toggleLayer = (button) => {
  const pressed = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(pressed));
  for (const plot of plots.filter((each) => each.dataset.figure === button.dataset.figure)) {
    const off = hiddenLayers(plot);
    if (pressed) off.delete(button.dataset.layer);
    else off.add(button.dataset.layer);
    plot.dataset.off = [...off].join("\n");
    draw(plot);
  }
};
const setView = async (input) => {
  for (const panel of document.querySelectorAll(`.panel[data-of="${input.name}"]`)) {
    panel.hidden = panel.dataset.view !== input.value;
    if (!panel.hidden) await freshen(panel.querySelector(".plot"));
  }
};

// Rings around the marks of the chosen trial and of the other seeds of its configuration. They lie over a figure, so that
// a choice does not draw the figure again.
const chosenPlaces = (trace, panel, isChosen) => {
  if (trace.type === "heatmap") {
    const cells = panel.members.filter(([number]) => isChosen(number) && isShown(number));
    return cells.map(([, row, column]) => [column, row]);
  }
  return trace.customdata.flatMap((number, index) => (isChosen(number) ? [[trace.x[index], trace.y[index]]] : []));
};
const drawRings = (plot) => {
  const old = plot.querySelector(".rings");
  if (old) old.remove();
  if (state.chosen === null || !plot.layout || isFolded(plot)) return;
  const family = familyOf(state.chosen);
  const isChosen = (number) => family !== undefined && familyOf(number) === family;
  const [panel, off] = [panelOf(plot), hiddenLayers(plot)];
  const { xaxis, yaxis, width, height } = plot._fullLayout;
  const toPixels = ([x, y]) => [xaxis._offset + xaxis.d2p(x), yaxis._offset + yaxis.d2p(y)];
  const isInside = ([x, y]) => x >= xaxis._offset - 1 && x <= xaxis._offset + xaxis._length + 1 && y >= yaxis._offset - 1 && y <= yaxis._offset + yaxis._length + 1;
  const picture = makeShape("svg", { class: "rings", width, height, "aria-hidden": "true" });
  for (const trace of panel.traces) {
    if (!trace.customdata || off.has(trace.meta)) continue;
    const places = chosenPlaces(filtered(trace), panel, isChosen).filter(([x, y]) => x !== null && y !== null).map(toPixels).filter(isInside);
    if (!places.length) continue;
    const shapes = trace.mode === "lines"
      ? [makeShape("polyline", { points: places.map((place) => place.join(",")).join(" ") })]
      : places.map(([cx, cy]) => makeShape("circle", { cx, cy, r: 8.5 }));
    picture.append(makeShape("g", { "data-of": trace.meta, "data-size": places.length }, ...shapes));
  }
  if (picture.childElementCount) plot.append(picture);
};
const ringAll = () => { for (const plot of plots) if (plot.dataset.ready) drawRings(plot); };
