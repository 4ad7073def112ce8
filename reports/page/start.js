// What a click, a key or a change does.
document.addEventListener("click", (event) => {
  const mark = event.target.closest("#first [data-configuration]");
  if (mark) choose(Number(mark.dataset.configuration));
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.layer !== undefined) toggleLayer(button);
  else if (button.dataset.scale) toggleScale(button);
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
startParallel();
watchView();
for (const group of document.querySelectorAll(".group")) {
  group.addEventListener("toggle", () => { drawParallel(); drawStale(); writeAddress(); });
}
addEventListener("hashchange", applyAddress);
showTrials();
redrawAll();
if (location.hash) applyAddress();
