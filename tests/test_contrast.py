"""Contrast as WCAG 2.2 defines it: marks and the borders of buttons stand out from the grounds of both themes."""

import re
from importlib import resources

import pytest

from reports import layout
from reports.layout import NUM_SERIES, look_of, shade_colors

LEAST = 3.0  # success criterion 1.4.11, of graphical objects and of parts of the user interface
TEXT = 4.5  # 1.4.3
CSS = (resources.files("reports") / "page" / "page.css").read_text(encoding="utf-8")
# those of the answer's picture are drawn in the colors of the theme, a band behind marks is no mark
ROLES = (
    *sorted(set(layout._LOOKS) - {"ring", "best", "tuned", "beyond", "band"}),
    *(f"series-{n}" for n in range(NUM_SERIES)),
)


def read_theme(name):
    # the custom properties of a theme: the first block is the light one, the last the dark one
    blocks = re.findall(r":root(?:\[data-theme=\"dark\"\])? \{([^}]*--page:[^}]*)\}", CSS)
    block = {"light": blocks[0], "dark": blocks[-1]}[name]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


THEMES = {name: read_theme(name) for name in ("light", "dark")}


def channels_of(color):
    return [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def luminance_of(channels):
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(color, ground, opacity=1.0):
    drawn = [
        opacity * above + (1 - opacity) * below
        for above, below in zip(channels_of(color), channels_of(ground), strict=True)
    ]
    dark, light = sorted([luminance_of(drawn), luminance_of(channels_of(ground))])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("role", ROLES)
def test_a_mark_stands_out_from_the_ground(theme, role):
    look = look_of(role)
    assert contrast(look.color, THEMES[theme]["page"], look.opacity) >= LEAST


@pytest.mark.parametrize("place", range(2))
def test_every_shade_of_a_mark_stands_out(place):
    ground = THEMES[list(THEMES)[place]]["page"]
    assert min(contrast(shade_colors(step / 20)[place], ground) for step in range(21)) >= LEAST


@pytest.mark.parametrize("theme", THEMES)
def test_buttons_and_texts_stand_out_from_the_ground(theme):
    colors = THEMES[theme]
    assert colors.keys() == THEMES["light"].keys()
    for ground in (colors["page"], colors["soft"]):
        assert contrast(colors["edge"], ground) >= LEAST
        assert contrast(colors["accent"], ground) >= LEAST
        assert min(contrast(colors[name], ground) for name in ("ink", "quiet", "good", "bad")) >= TEXT
