// Which trials are shown: by outcome, phase and every swept setting. A group without a tick does not filter.
const field = (filter, index) => {
  const { label } = details.columns[filter.column];
  const set = make("fieldset", { "data-filter": index }, make("legend", {}, label));
  if (filter.kind === "choice") {
    for (const value of filter.values) {
      set.append(make("label", {}, make("input", { type: "checkbox", value }), ` ${value}`));
    }
  } else {
    for (const [end, bound] of [["from", filter.low], ["to", filter.high]]) {
      set.append(make("label", {}, `${end} `, make("input", { type: "number", step: "any", placeholder: bound, "data-end": end })));
    }
  }
  return set;
};

const test = (set) => {
  const filter = details.filters[Number(set.dataset.filter)];
  const column = details.columns[filter.column];
  if (filter.kind === "choice") {
    const ticked = new Set([...set.querySelectorAll("input:checked")].map((input) => input.value));
    return ticked.size ? (row) => ticked.has(column.texts[row]) : null;
  }
  const [low, high] = [...set.querySelectorAll("input")].map((input) => input.valueAsNumber);
  if (Number.isNaN(low) && Number.isNaN(high)) return null;
  // a missing bound does not filter; a trial without a value is not shown
  return (row) => column.keys[row] !== null && !(column.keys[row] < low) && !(column.keys[row] > high);
};

const applyFilters = () => {
  const tests = [...document.querySelectorAll("[data-filter]")].map(test).filter(Boolean);
  state.shown = tests.length
    ? new Set(details.number.filter((_, row) => tests.every((passes) => passes(row))))
    : null;
  state.page = 0;
  const count = state.shown === null ? details.number.length : state.shown.size;
  const all = details.number.length.toLocaleString("en");
  byId("filter-status").textContent = `Showing ${count.toLocaleString("en")} of ${all} trials.`;
  showTrials();
  showFrontRows();
  redrawAll();
  writeAddress();
};
const clearFilters = () => { byId("filter-form").reset(); applyFilters(); };
const startFilters = () => {
  if (details.filters.length) byId("filter-fields").append(...details.filters.map(field));
  let waiting = 0;
  byId("filter-form").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(applyFilters, 150);
  });
  byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
};
