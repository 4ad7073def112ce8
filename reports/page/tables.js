// Sorting, copying, and the table of all trials; every trial can be chosen by the keyboard.
const PAGE = 20;

// numbers before texts; missing values last in either direction
const compare = (a, b, direction) => {
  const [none, nothing] = [a, b].map((value) => value === "" || value === null || value === undefined);
  if (none || nothing) return none - nothing;
  const [x, y] = [Number(a), Number(b)];
  if (Number.isNaN(x) && Number.isNaN(y)) return direction * String(a).localeCompare(String(b), "en");
  if (Number.isNaN(x) || Number.isNaN(y)) return direction * (Number.isNaN(x) - Number.isNaN(y));
  return direction * (x - y);
};
const markSorted = (head, ascending) => {
  for (const other of head.parentElement.children) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
};
const sortRows = (head) => {
  const body = head.closest("table").tBodies[0];
  const ascending = head.getAttribute("aria-sort") !== "ascending";
  markSorted(head, ascending);
  const key = (row) => row.cells[head.cellIndex].dataset.key;
  body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b), ascending ? 1 : -1)));
};

const copy = async (button) => {
  const code = button.previousElementSibling || button.parentElement.querySelector("code"); // before it or behind it
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code); // without permission to write the clipboard
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
};

const trialRows = () => {
  const { column, ascending } = state.sort;
  const { keys, texts: shown } = details.columns[column];
  const values = keys || shown;
  const rows = details.number.flatMap((number, row) => (isShown(number) ? [row] : []));
  return rows.sort((a, b) => compare(values[a], values[b], ascending ? 1 : -1) || a - b);
};
const trialRow = (row) => {
  const number = details.number[row];
  const isChosen = number === state.chosen;
  const button = make("button", { type: "button", class: "choose", "data-trial": number, "aria-pressed": String(isChosen), "aria-label": `Show trial ${number}` }, "Show");
  const columns = details.shown.map((place) => details.columns[place]);
  const cells = columns.slice(1).map((column) => make("td", { class: column.keys ? "number" : null }, column.texts[row]));
  return make("tr", { class: isChosen ? "chosen" : null }, make("th", { scope: "row" }, `${number} `, button), ...cells);
};
const showTrials = () => {
  const body = byId("trials-body");
  if (!body) return;
  const rows = trialRows();
  const last = Math.max(0, Math.ceil(rows.length / PAGE) - 1);
  state.page = Math.min(state.page, last);
  body.replaceChildren(...rows.slice(state.page * PAGE, (state.page + 1) * PAGE).map(trialRow));
  byId("trials-page").textContent = `Page ${state.page + 1} of ${last + 1}`;
  byId("trials-back").disabled = state.page === 0;
  byId("trials-on").disabled = state.page === last;
};
const sortTrials = (head) => {
  const column = Number(head.dataset.column);
  state.sort = { column, ascending: !(state.sort.column === column && state.sort.ascending) };
  markSorted(head, state.sort.ascending);
  state.page = 0;
  showTrials();
};
const turnPage = (step) => {
  state.page += step;
  showTrials();
};
const showFrontRows = () => {
  for (const row of document.querySelectorAll("tr[data-trial]")) {
    const number = Number(row.dataset.trial);
    row.hidden = rowOf.has(number) && !isShown(number);
    const isChosen = state.chosen !== null && rowOf.has(number) && familyOf(number) === familyOf(state.chosen);
    row.classList.toggle("chosen", isChosen);
    row.querySelector(".choose").setAttribute("aria-pressed", String(isChosen));
  }
};
