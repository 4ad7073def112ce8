// The recommendations within the limits of the sliders, looked up in the table that Python has computed.
const limitInputs = [...document.querySelectorAll("[data-limit]")];
const limitRow = (title, place) => {
  const head = make("th", { scope: "row" }, title);
  if (place < 0) return make("tr", {}, head, make("td", { colspan: limits.metrics.length + 4 }, place === -1
    ? "The records are not enough to recommend a configuration within these limits; the command below prints what to run."
    : "No configuration that was tried keeps to these limits."));
  const [shown, sure] = limits.named[place];
  const { number, batch, settings, cells } = limits.shown[shown];
  const button = make("button", { type: "button", class: "choose", "data-trial": number, "aria-pressed": "false", "aria-label": `Show configuration C${number}` }, `C${number}`);
  return make(
    "tr", { "data-number": number }, head, make("td", {}, button), make("td", { class: "number" }, make("strong", {}, batch)),
    ...cells.map(([value, interval]) => make("td", { class: "number" }, value, ...(interval ? [make("small", {}, interval)] : []))),
    make("td", {}, sure), make("td", { class: "settings" }, settings),
  );
};
const showLimits = () => {
  const positions = limitInputs.map((input) => Number(input.value));
  limitInputs.forEach((input, index) => { input.nextElementSibling.textContent = limits.limits[index].texts[positions[index]]; });
  const row = positions.reduce((sum, position, index) => sum * limits.limits[index].texts.length + position, 0);
  const places = limits.uses.map((_, use) => limits.answers[row * limits.uses.length + use]);
  byId("limit-command").textContent = limits.command + positions.map((position, index) => limits.limits[index].options[position]).join("");
  byId("limit-rows").replaceChildren(...limits.uses.map((title, use) => limitRow(title, places[use])));
  const [shown, sure] = places[0] < 0 ? [-1, ""] : limits.named[places[0]];
  const first = limits.shown[shown];
  byId("limit-status").textContent = first
    ? `Within these limits: an effective batch size of ${first.batch} (C${first.number}), ${sure}.`
    : "Within these limits no batch size can be recommended.";
  const isLimited = limitInputs.some((input) => input.value !== input.defaultValue);
  for (const mark of document.querySelectorAll("#first [data-configuration]")) {
    mark.classList.toggle("within-limits", isLimited && Boolean(first) && Number(mark.dataset.configuration) === first.number);
  }
};
const startLimits = () => {
  if (!limits) return;
  byId("limits").hidden = false; // without a script it would do nothing
  showLimits();
  for (const input of limitInputs) input.addEventListener("input", () => { showLimits(); writeAddress(); });
};
