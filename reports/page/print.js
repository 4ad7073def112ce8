// Printing: the light theme at the width of the page, with the commands that the answer has folded.
const PAPER = { one: 680, two: 335 }; // pixels of a column
let before = null;

const toPaper = () => {
  if (before) return;
  before = { theme: document.documentElement.dataset.theme, folded: [...document.querySelectorAll("#answer .more:not([open])")] };
  for (const part of before.folded) part.open = true;
  document.documentElement.dataset.theme = "light";
  for (const plot of plots) {
    if (isFolded(plot)) continue; // a folded part is not printed
    if (plot.dataset.stale) freshen(plot);
    if (!plot.layout) continue;
    const width = plot.closest(".panels").classList.contains("single") ? PAPER.one : PAPER.two;
    Plotly.relayout(plot, { ...themed(layoutOf(plot)), width, height: plot.clientHeight, autosize: false });
  }
  drawCurves();
};
const fromPaper = () => {
  if (!before) return;
  if (before.theme) document.documentElement.dataset.theme = before.theme;
  else delete document.documentElement.dataset.theme;
  for (const part of before.folded) part.open = false;
  before = null;
  for (const plot of plots) {
    if (plot.layout) Plotly.relayout(plot, { width: null, height: null, autosize: true });
  }
  redrawAll();
  drawCurves();
};
addEventListener("beforeprint", toPaper);
addEventListener("afterprint", fromPaper);
