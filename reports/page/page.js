// The state of the page in the fragment of its address: a link opens the page as it was. A fragment without "=" is the
// name of a part, which is opened.
const readAddress = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
const writeAddress = () => {
  const parts = new URLSearchParams();
  if (state.chosen !== null) parts.set("trial", state.chosen);
  if (byId("theme").value !== "system") parts.set("theme", byId("theme").value);
  for (const set of document.querySelectorAll("[data-filter]")) {
    for (const value of readField(set)) parts.append(`filter${set.dataset.filter}`, value);
  }
  for (const input of limitInputs) if (input.value !== input.defaultValue) parts.set(`limit-${input.dataset.limit}`, input.value);
  const open = [...document.querySelectorAll(".group[open]")].map((group) => group.id).join(",");
  if (open) parts.set("open", open);
  const fragment = parts.toString();
  const isPart = location.hash !== "" && !location.hash.includes("=");
  const isBare = [...parts.keys()].every((key) => key === "open");
  if (fragment === location.hash.slice(1) || (isPart && isBare)) return;
  history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
};
// ticked values, or "from:1" and "to:2", or the text that is sought
const readField = (set) => [...set.querySelectorAll("input")].flatMap((input) => {
  if (input.type === "checkbox") return input.checked ? [input.value] : [];
  if (input.value === "") return [];
  return [input.dataset.end ? `${input.dataset.end}:${input.value}` : input.value];
});
const fillField = (set, values) => {
  for (const input of set.querySelectorAll("input")) {
    const end = input.dataset.end ? `${input.dataset.end}:` : "";
    if (input.type === "checkbox") input.checked = values.includes(input.value);
    else input.value = (values.find((value) => value.startsWith(end)) || "").slice(end.length);
  }
};
const openPart = (part) => {
  for (let each = part; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  if (part) part.scrollIntoView();
};
const applyAddress = () => {
  if (location.hash && !location.hash.includes("=")) {
    openPart(byId(location.hash.slice(1)));
    return;
  }
  const parts = readAddress();
  for (const id of (parts.get("open") || "").split(",").filter(Boolean)) if (byId(id)) byId(id).open = true;
  if (["light", "dark"].includes(parts.get("theme"))) {
    byId("theme").value = parts.get("theme");
    setTheme(parts.get("theme"));
  }
  for (const set of document.querySelectorAll("[data-filter]")) fillField(set, parts.getAll(`filter${set.dataset.filter}`));
  applyFilters();
  for (const input of limitInputs) {
    const given = parts.get(`limit-${input.dataset.limit}`) ?? "";
    input.value = /^\d+$/.test(given) && Number(given) <= Number(input.max) ? given : input.defaultValue;
  }
  if (limitInputs.some((input) => input.value !== input.defaultValue)) showLimits();
  choose(parts.has("trial") ? Number(parts.get("trial")) : null);
};

// Files that are made in the page: nothing is requested.
const save = (name, type, text) => {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};
const csvCell = (value) => {
  const text = value === null ? "" : String(value);
  const safe = /^[=+@\t\r]/.test(text) ? `'${text}` : text; // a spreadsheet would run it
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
const trialsAsCsv = () => {
  const rows = details.number.map((number, row) => row).filter((row) => isShown(details.number[row]));
  const lines = rows.map((row) => details.columns.map((column) => csvCell(column.keys ? column.keys[row] : column.texts[row])).join(","));
  return [details.columns.map((column) => csvCell(column.name)).join(","), ...lines, ""].join("\n");
};
// A figure of its own: the colors of the theme are written into each element.
const figureAsSvg = (picture) => {
  const copy = picture.cloneNode(true);
  const own = [...copy.querySelectorAll("[style]")];
  [...picture.querySelectorAll("[style]")].forEach((element, index) => {
    for (const name of ["fill", "stroke"]) own[index].style.setProperty(name, getComputedStyle(element)[name]);
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("xmlns:xlink", "http://www.w3.org/1999/xlink");
  copy.setAttribute("style", `background: ${color("--page")}; font-family: system-ui, sans-serif`);
  return copy.outerHTML;
};
const download = (kind) => {
  const name = document.querySelector("h1").textContent.trim().replace(/[^\w.-]+/g, "_") || "study";
  if (kind === "trials") save(`${name}-trials.csv`, "text/csv", trialsAsCsv());
  else if (kind === "study") save(`${name}.toml`, "application/toml", document.querySelector("#run pre").textContent);
  else {
    const picture = [...document.querySelectorAll("#first .picture")].find((each) => each.getBoundingClientRect().width > 0);
    save(`${name}-answer.svg`, "image/svg+xml", figureAsSvg(picture));
  }
};

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
  for (const plot of plots) if (plot.layout) Plotly.relayout(plot, { width: null, height: null, autosize: true });
  redrawAll();
  drawCurves();
};
addEventListener("beforeprint", toPaper);
addEventListener("afterprint", fromPaper);

// What a click, a key or a change does.
document.addEventListener("click", (event) => {
  const mark = event.target.closest("#first [data-configuration]");
  if (mark) choose(Number(mark.dataset.configuration));
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.layer !== undefined) toggleLayer(button);
  else if (button.classList.contains("copy")) copy(button);
  else if (button.classList.contains("choose")) choose(Number(button.dataset.trial), button);
  else if (button.closest("#trials thead")) sortTrials(button.closest("th"));
  else if (button.closest("thead")) sortRows(button.closest("th"));
  else if (button.id === "trials-back") turnPage(-1);
  else if (button.id === "trials-on") turnPage(1);
  else if (button.id === "filter-clear") clearFilters();
  else if (button.id === "chosen-close") choose(null);
  else if (button.id === "print") print();
  else if (button.dataset.download) download(button.dataset.download);
});
document.addEventListener("change", ({ target }) => {
  if (target.id === "theme") setTheme(target.value);
  else if (target.id === "chosen-by") drawCurves();
  else if (target.closest(".views")) setView(target);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.chosen !== null) choose(null);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { redrawAll(); drawCurves(); });
startFilters();
startLimits();
watchView();
for (const group of document.querySelectorAll(".group")) {
  group.addEventListener("toggle", () => { drawStale(); writeAddress(); });
}
addEventListener("hashchange", applyAddress);
showTrials();
redrawAll();
if (location.hash) applyAddress();
