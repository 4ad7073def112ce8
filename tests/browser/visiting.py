"""An open page with everything that it said and asked for."""

import shutil
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DRAWN = "html[data-drawn=yes]"
OPEN_ALL = """() => {
  document.documentElement.style.scrollBehavior = "auto";
  for (const group of document.querySelectorAll("details.group")) group.open = true;
}"""
# scrolls to the first figure that is to be drawn; whether there is one
SHOW_STALE = """() => {
  const stale = [...document.querySelectorAll(".plot[data-stale]")].find((plot) => plot.offsetParent);
  if (stale) stale.scrollIntoView();
  return Boolean(stale);
}"""


class Visit:
    """Opens ``path``, with the ``fragment`` of an address, and waits until every figure is drawn, or, unless
    ``is_whole``, what is in view."""

    def __init__(self, chromium, path: Path, fragment: str = "", is_whole: bool = True, **context) -> None:
        self.context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | context))
        self.page = self.context.new_page()
        self.said, self.asked, self.dialogs = [], [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri() + fragment)
        self.path = path
        self.close = self.context.close
        if is_whole:
            self.settle()
        else:  # what is in view
            self.page.wait_for_selector(DRAWN, timeout=60_000)

    def settle(self) -> None:
        """Opens every part and scrolls through it, so that everything is drawn again, and back to the top."""
        self.page.evaluate(OPEN_ALL)
        for _ in range(200):
            self.page.wait_for_selector(DRAWN, timeout=60_000)
            if not self.page.evaluate(SHOW_STALE):
                break
            self.page.wait_for_timeout(20)
        self.page.evaluate("document.documentElement.style.scrollBehavior = ''")

    def is_quiet(self) -> bool:
        outside = [
            url
            for url in self.asked
            if url.partition("#")[0] != self.path.as_uri() and not url.startswith(("data:", "blob:"))
        ]
        assert (self.said, outside, self.dialogs) == ([], [], [])
        return True

    def plot(self, figure: str, panel: int = 0):
        return self.page.locator(f'.plot[data-figure="{figure}"][data-panel="{panel}"]')

    def count(self, figure: str, panel: int, selector: str) -> int:
        return self.plot(figure, panel).locator(selector).count()

    def traces(self, figure: str, panel: int = 0) -> list[dict]:
        """Name, and how many marks, of each trace that Plotly holds."""
        return self.plot(figure, panel).evaluate(
            """plot => plot.data.map((t) => (
              { meta: t.meta, size: (t.x || []).filter((v) => v !== null).length, ids: t.customdata }
            ))"""
        )
