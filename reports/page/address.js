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
  for (const [index, range] of Object.entries(state.brushes)) parts.set(`range${index}`, range.map((end) => end.toFixed(3)).join(":"));
  if (state.color !== null) parts.set("color", details.columns[state.color].name);
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
  state.brushes = Object.fromEntries(axes.filter(({ index }) => parts.has(`range${index}`)).map(({ index }) => [index, parts.get(`range${index}`).split(":").map(Number)])
    .filter(([, range]) => range.length === 2 && range.every((end) => end >= 0 && end <= 1) && range[0] < range[1]));
  const tinted = axes.find(({ column }) => column.name === parts.get("color"));
  state.color = tinted ? tinted.index : null;
  if (byId("color-by")) byId("color-by").value = tinted ? tinted.index : "";
  applyFilters();
  for (const input of limitInputs) {
    const given = parts.get(`limit-${input.dataset.limit}`) ?? "";
    input.value = /^\d+$/.test(given) && Number(given) <= 100 ? given : input.defaultValue;
  }
  if (limitInputs.some((input) => input.value !== input.defaultValue)) applyLimits();
  choose(parts.has("trial") ? Number(parts.get("trial")) : null);
};
