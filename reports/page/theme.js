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
