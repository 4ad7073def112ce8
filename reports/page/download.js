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
// A figure of its own: what the page's style gives is written into each element.
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family", "text-anchor", "paint-order"];
const figureAsSvg = (picture) => {
  const copy = picture.cloneNode(true);
  const own = [...copy.querySelectorAll("*")];
  [...picture.querySelectorAll("*")].forEach((element, index) => {
    const style = getComputedStyle(element);
    for (const name of STYLES) own[index].style.setProperty(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.style.background = color("--page");
  copy.style.fontFamily = "system-ui, sans-serif";
  return copy.outerHTML;
};
const download = (kind) => {
  const name = document.querySelector("h1").textContent.trim().replace(/[^\w.-]+/g, "_") || "study";
  if (kind === "trials") save(`${name}-trials.csv`, "text/csv", trialsAsCsv());
  else if (kind === "study") save(`${name}.toml`, "application/toml", details.study);
  else {
    const picture = [...document.querySelectorAll("#first .picture")].find((each) => each.getBoundingClientRect().width > 0);
    save(`${name}-answer.svg`, "image/svg+xml", figureAsSvg(picture));
  }
};
