// The chosen trial: its settings, what it measured, the other seeds, its curves, its time, its command.
let opener = null;

const choose = (number, button = null) => {
  if (number !== null && !rowOf.has(number)) return;
  state.chosen = number;
  byId("chosen").hidden = number === null;
  document.body.classList.toggle("has-chosen", number !== null);
  if (number === null) {
    if (opener && opener.isConnected) opener.focus();
    opener = null;
  } else {
    showChosen(rowOf.get(number));
    if (button) opener = button;
  }
  showTrials();
  showFrontRows();
  for (const mark of document.querySelectorAll("#first [data-configuration]")) {
    mark.classList.toggle("chosen", number !== null && familyOf(Number(mark.dataset.configuration)) === familyOf(number));
  }
  ringAll();
  writeAddress();
  if (button) byId("chosen-title").focus();
};

const pairs = (entries) => entries.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
const showChosen = (row) => {
  const number = details.number[row];
  byId("chosen-title").textContent = `C${details.family[row]} · trial ${number}`;
  byId("chosen-kind").textContent = [textOf(row, "Outcome"), `${textOf(row, "Phase")} phase`, `seed ${textOf(row, "Seed")}`].join(", ");
  for (const group of ["setting", "measured"]) {
    const columns = details.columns.filter((column) => column.group === group);
    byId(`chosen-${group}`).replaceChildren(...pairs(columns.map((column) => [column.label, column.texts[row]])));
  }
  showEstimates(details.family[row]);
  byId("chosen-note").textContent = details.notes[row];
  byId("chosen-command").textContent = details.commands[row];
  const seeds = details.number.filter((other) => familyOf(other) === details.family[row] && other !== number);
  byId("chosen-seeds").replaceChildren(...seeds.map((other) => make(
    "button", { type: "button", class: "choose pill", "data-trial": other }, `Trial ${other}, seed ${textOf(rowOf.get(other), "Seed")}`,
  )));
  byId("chosen-seeds-title").hidden = seeds.length === 0;
  showLedger(details.ledger[row]);
  drawCurves();
};

// of the configuration, over all of its seeds
const showEstimates = (first) => {
  const found = limits ? limits.shown.find(({ number }) => number === first) : undefined;
  byId("chosen-estimates-part").hidden = !found;
  if (!found) return;
  const labels = limits.metrics.map((name) => details.columns.find((column) => column.name === name).label);
  byId("chosen-estimates").replaceChildren(...pairs(found.cells.map(([value, interval], index) => [labels[index], interval ? `${value} (${interval})` : value])));
};
const showLedger = (seconds) => {
  const total = seconds.reduce((sum, value) => sum + (value || 0), 0);
  byId("chosen-ledger").hidden = total === 0;
  if (total === 0) return;
  const parts = details.parts.map((part, index) => ({ ...part, seconds: seconds[index] || 0 })).filter((part) => part.seconds > 0);
  const bar = make("div", { class: "stack", "aria-hidden": "true" });
  for (const part of parts) {
    const piece = make("span");
    piece.style.width = `${(100 * part.seconds) / total}%`;
    piece.style.background = part.color;
    bar.append(piece);
  }
  const list = make("dl", {}, ...pairs(parts.map((part) => [part.name, `${Number(part.seconds.toPrecision(3))} s (${Math.round((100 * part.seconds) / total)} %)`])));
  [...list.querySelectorAll("dt")].forEach((term, index) => { term.style.borderLeftColor = parts[index].color; });
  byId("chosen-ledger-body").replaceChildren(bar, list);
};

const drawCurves = () => {
  const plot = byId("chosen-curves");
  if (state.chosen === null) return;
  const own = details.curves[state.chosen];
  byId("chosen-curves-part").hidden = !own;
  if (!own) return;
  const by = Number(byId("chosen-by").value);
  const family = details.number.filter((number) => familyOf(number) === familyOf(state.chosen) && details.curves[number]);
  const line = (number, values, more) => ({
    type: "scatter", mode: "lines+markers", x: details.curves[number][by], y: details.curves[number][values], hoverinfo: "x+y",
    marker: { size: number === state.chosen ? 5 : 3 }, ...more,
  });
  const traces = [...family.filter((number) => number !== state.chosen), state.chosen].flatMap((number) => [
    line(number, 3, { line: { color: "#0072b2", width: number === state.chosen ? 2.5 : 1 } }),
    line(number, 4, { line: { color: "#d55e00", width: number === state.chosen ? 2 : 1, dash: "dot" }, yaxis: "y2" }),
  ]);
  const layout = {
    margin: { l: 44, r: 58, t: 6, b: 34 }, showlegend: false, hovermode: "closest", dragmode: false,
    xaxis: { title: { text: byId("chosen-by").selectedOptions[0].textContent }, zeroline: false, automargin: true },
    yaxis: { title: { text: details.curve_label, font: { color: "#0072b2" } }, zeroline: false },
    yaxis2: { title: { text: "loss (dotted)", standoff: 8 }, automargin: true, overlaying: "y", side: "right", showgrid: false, zeroline: false },
  };
  Plotly.react(plot, traces, themed(layout), { ...config, displayModeBar: false });
};
