// Data of the page, and helpers. Every text is set as text, never as markup.
const { figures, texts, details } = JSON.parse(await unpack("data"));
const state = { chosen: null, shown: null, color: null, brushes: {}, sort: { column: 0, ascending: true }, page: 0 };
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
