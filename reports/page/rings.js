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
