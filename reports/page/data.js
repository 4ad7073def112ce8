// The page contains its data and Plotly's script as gzip in base64, at less than half of their size. The policy has the
// digest of the script as it is when it runs.
const packed = (name) => document.getElementById(name);
const unpack = (name) => {
  const bytes = Uint8Array.from(atob(packed(name).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
if (!("DecompressionStream" in window)) {
  document.getElementById("old-browser").hidden = false;
  return;
}
const plotly = document.createElement("script");
plotly.textContent = await unpack("plotly");
packed("plotly").replaceWith(plotly); // it runs here

// Data of the page, and helpers. Every text is set as text, never as markup.
const { figures, texts, details, limits } = JSON.parse(await unpack("data"));
const state = { chosen: null, shown: null, sort: { column: 0, ascending: true }, page: 0 };
const plots = [...document.querySelectorAll(".plot[data-figure]")];
const rowOf = new Map(details.number.map((number, row) => [number, row]));
const familyOf = (number) => details.family[rowOf.get(number)];
const figureOf = new Map(figures.map((figure) => [figure.name, figure]));
const panelOf = (plot) => figureOf.get(plot.dataset.figure).panels[Number(plot.dataset.panel)];

const byId = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
};
const SVG = "http://www.w3.org/2000/svg";
const makeShape = (name, attributes, ...children) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const pause = () => new Promise((resolve) => setTimeout(resolve)); // lets the page answer
const isShown = (number) => state.shown === null || state.shown.has(number);
const textOf = (row, label) => {
  const column = details.columns.find((each) => each.label === label);
  return column ? column.texts[row] : "";
};

const unpooled = (positions) =>
  positions.map((each) => (Array.isArray(each) ? unpooled(each) : texts[each]));
for (const panel of figures.flatMap((figure) => figure.panels)) {
  for (const trace of panel.traces) trace.hovertext = unpooled(trace.hovertext);
}

// Light, dark, or as the system is; the plots follow.
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const axisColors = () => ({ gridcolor: color("--line"), linecolor: color("--line"), tickcolor: color("--line") });

const themed = (layout) => {
  const own = {
    ...layout,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--quiet"), activecolor: color("--ink") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: color("--ink"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { align: "left", bgcolor: color("--soft"), bordercolor: color("--line"), font: { color: color("--ink") } },
  };
  for (const name of ["xaxis", "yaxis", "yaxis2"]) if (layout[name]) own[name] = { ...layout[name], ...axisColors() };
  return own;
};

const setTheme = (name) => {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  redrawAll();
  drawCurves();
  writeAddress();
};
