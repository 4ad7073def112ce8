// The sliders of the limits: where nothing is limited a slider is at its end. Each limit is a number that the command
// line accepts as it is printed.
const limitInputs = [...document.querySelectorAll("[data-limit]")];
const limitOf = (input) => {
  const { limit: name } = input.dataset;
  const known = estimated[name].filter(Number.isFinite);
  const [low, high, share] = [Math.min(...known), Math.max(...known), Number(input.value) / 100];
  if (name === ACCURACY) return share === 0 ? null : { value: Number((low + share * (high - low)).toFixed(4)) };
  if (share === 1) return null;
  const unit = name === MEMORY ? 2 ** 20 : 1;
  const shown = Number(((low * (high / low) ** share) / unit).toPrecision(3));
  return { value: shown * unit, shown };
};
const describeLimit = (name, limit) => {
  if (!limit) return "no limit";
  if (name === ACCURACY) return `${(100 * limit.value).toFixed(2)} %`;
  return `${limit.shown} ${name === MEMORY ? "MiB" : "s"}`;
};
const optionOf = (name, limit) => {
  if (name === ACCURACY) return ` --min-accuracy ${limit.value}`;
  return name === MEMORY ? ` --max-memory ${limit.shown}MiB` : ` --max-seconds ${limit.shown}`;
};
// "never as certain, and rounded down", as reports/labels.py prints it
const formatProbability = (value) => {
  const shown = Math.floor(100 * value + 1e-9);
  if (value > 0.99) return "over 99 %";
  return shown <= 0 ? "under 1 %" : `${shown} %`;
};
const shownAt = (place) => limits.shown.find((each) => each.place === place);
const limitRow = (use, found, isPossible) => {
  const head = make("th", { scope: "row" }, use.title);
  if (!found) return make("tr", {}, head, make("td", { colspan: limits.metrics.length + 4 }, isPossible
    ? "The records are not enough to recommend a configuration within these limits; the command below prints what to run."
    : "No configuration that was tried keeps to these limits."));
  const { number, batch, settings, cells } = shownAt(found.place);
  const button = make("button", { type: "button", class: "choose", "data-trial": number, "aria-pressed": "false", "aria-label": `Show configuration C${number}` }, `C${number}`);
  const state = found.probability >= limits.rules.confidence ? "settled" : "not settled";
  return make(
    "tr", { "data-use": use.name, "data-probability": found.probability, "data-number": number }, head, make("td", {}, button), make("td", { class: "number" }, make("strong", {}, batch)),
    ...cells.map(([value, interval]) => make("td", { class: "number" }, value, ...(interval ? [make("small", {}, interval)] : []))),
    make("td", {}, `${formatProbability(found.probability)}, ${state}`), make("td", { class: "settings" }, settings),
  );
};
let limitRound = 0;
const applyLimits = async () => {
  const own = ++limitRound; // a later call takes over
  const chosen = limitInputs.map((input) => [input.dataset.limit, limitOf(input)]);
  limitInputs.forEach((input, index) => { input.nextElementSibling.textContent = describeLimit(...chosen[index]); });
  const set = chosen.filter(([, limit]) => limit);
  byId("limit-command").textContent = `${limits.command}${set.map(([name, limit]) => optionOf(name, limit)).join("")}`;
  const given = Object.fromEntries(set.map(([name, { value }]) => [name, value]));
  const found = await recommendWithin(given);
  if (own !== limitRound) return;
  const isPossible = findWithin(estimated, given).some(Boolean);
  byId("limit-rows").replaceChildren(...limits.uses.map((use, index) => limitRow(use, found[index], isPossible)));
  byId("limit-rows").dataset.of = byId("limit-command").textContent;
  const first = found[0] ? shownAt(found[0].place) : null;
  byId("limit-status").textContent = first
    ? `Within these limits: an effective batch size of ${first.batch} (C${first.number}), ${formatProbability(found[0].probability)} probability.`
    : "Within these limits no batch size can be recommended.";
  for (const mark of document.querySelectorAll("#first [data-configuration]")) {
    mark.classList.toggle("within-limits", set.length > 0 && first !== null && Number(mark.dataset.configuration) === first.number);
  }
  writeAddress();
};
const startLimits = () => {
  if (!limits) return;
  byId("limits").hidden = false; // without a script it would do nothing
  byId("limit-command").textContent = limits.command;
  let waiting = 0;
  for (const input of limitInputs) {
    input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(applyLimits, 60);
    });
  }
};
