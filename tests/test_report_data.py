"""What was found by looking at the data, on the page and in the terminal: the same words, whatever files are called."""

import dataclasses
import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
from frames_factory import make_frames
from hostile import HOSTILE
from image_folder_factory import list_images, make_image, write_files

from reports.evidence import gather_evidence
from reports.figure import Absent
from reports.figures.all_figures import ReportFigures
from reports.labels import list_classes
from reports.page.page import render_page
from reports.texts import list_reservations
from sweep.cli.check import format_data
from sweep.config.errors import show_name
from sweep.config.trial import build_config
from sweep.records.inputs import DataSummary, Ignored
from sweep.training.data.sources import look_at_data

NO_FIGURES = ReportFigures(answer=Absent("", ""), figures=[], absent=[])


def section_of(data: DataSummary | None) -> str:
    """The page's section on the data, as it is in the file."""
    evidence = gather_evidence(dataclasses.replace(make_frames(8), data=data))
    page = render_page(evidence, NO_FIGURES)
    return page.partition('<section id="images"')[2].partition("</section>")[0]


def words_of(section: str) -> str:
    """What a reader sees of ``section``, each element on a line of its own."""
    return html.unescape(re.sub(r"(\s*<[^>]+>\s*)+", "\n", section))


def summary(num_classes: int = 3) -> DataSummary:
    return DataSummary(
        name="imagefolder",
        root="photos",
        num_train=1300,
        num_val=228,
        num_test=269,
        num_ignored=8,
        classes={f"c{n:02}": {"train": 100 * n + 5, "val": n + 1, "test": 1000 * n} for n in range(num_classes)},
        held_out="validation: 15% of all images that are left; test: 15% of all images",
        sizes={"8 x 8": 900, "9 x 9": 90, "10 x 10": 9, "11 x 11": 8, "12 x 12": 7, "13 x 13": 6},
        modes={"RGB": 1020},
        ignored=(
            Ignored(reason="hidden", num_files=7, examples=("a/.0.png", "a/.1.png")),
            Ignored(reason="left out by data.subset = 4", num_files=1, examples=()),
        ),
        notes=("val/ shares 3 images with train/",),
        digest="0123456789abcdef" * 2,
    )


def test_page_and_terminal_say_the_same_of_the_data() -> None:
    data = summary()
    page, terminal = words_of(section_of(data)), "\n".join(format_data(data))
    for words in (
        "imagefolder in photos: 1,300 training, 228 validation and 269 test images",
        "3 classes; fewest 6 (c00), most 2,208 (c02) images",
        "validation: 15% of all images that are left; test: 15% of all images",
        "8 x 8 (900), 9 x 9 (90), 10 x 10 (9), 11 x 11 (8), other sizes (13)", "RGB",
        "7, hidden: a/.0.png, a/.1.png ...", "1, left out by data.subset = 4", "val/ shares 3 images with train/",
        "0123456789ab",
    ):  # fmt: skip
        assert words in page
        assert words in terminal
    assert "c01\n105\n2\n1,000" in page
    assert re.search(r"c01 +105 +2 +1,000$", terminal, re.M)
    assert data.digest in page  # whole, so that two pages can be compared


@pytest.mark.parametrize(("num_classes", "shown"), [(20, 20), (21, 10)])
def test_of_many_classes_the_smallest_and_the_largest_are_listed(num_classes: int, shown: int) -> None:
    table = list_classes(summary(num_classes))
    assert table is not None
    names = [name for name, _ in table.rows]
    assert len(names) == shown
    assert {"c00", "c04", f"c{num_classes - 1}", f"c{num_classes - 5}"} <= set(names)
    assert ("five smallest" in table.caption) == (shown == 10)


def test_notes_are_among_the_reservations_that_open_the_page() -> None:
    frames = make_frames(40, confirm=40)
    with_notes, without = (
        list_reservations(gather_evidence(dataclasses.replace(frames, data=data)))
        for data in (summary(), dataclasses.replace(summary(), notes=()))
    )
    assert [line for line in with_notes if line not in without] == [("Data: val/ shares 3 images with train/.", "")]


def test_a_set_that_is_not_there_yet_has_no_table() -> None:
    data = DataSummary(name="mnist", num_train=54_000, notes=("not counted, because it is not unpacked",))
    page = section_of(data)
    assert "mnist: not counted" in page
    assert "not counted, because it is not unpacked" in page
    assert "<table" not in page
    assert "<dl" not in page


def test_hostile_names_never_reach_the_page_or_the_terminal_raw() -> None:
    names = (*HOSTILE, "a\udcff", "b\nnote: trust me", "c\x1b[2J")
    data = DataSummary(
        name="imagefolder", root=HOSTILE[0], num_train=1, num_val=1, num_test=1,
        classes={name: {"train": 1, "val": 1, "test": 1} for name in names}, held_out=HOSTILE[2],
        ignored=tuple(Ignored(reason=name, num_files=2, examples=(name,)) for name in names), notes=names,
        digest="0" * 32,
    )  # fmt: skip
    evidence = gather_evidence(dataclasses.replace(make_frames(8), data=data))
    page = render_page(evidence, NO_FIGURES)
    page.encode()  # a lone surrogate cannot be written
    head = page.partition("<script>")[0]
    for raw in (
        "<script>window", "<img src=x", "<svg onload", "<a href='https", "<iframe", "<base", "<style>*",
        "<meta http-equiv=refresh",
    ):  # fmt: skip
        assert raw not in head
    assert page.count("</script>") == 3
    lines = format_data(data)
    assert all("\n" not in line and line.encode() for line in lines)
    assert not any("\x1b" in line or "\u202e" in line for line in lines)
    assert [show_name(name) for name in names[-3:]] == [r"a\udcff", r"b\nnote: trust me", r"c\x1b[2J"]


def test_class_names_that_are_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    root = write_files(tmp_path / "images", list_images({"plain": 10}))
    odd = bytes(root) + b"/o\xffdd"
    Path(odd.decode(errors="surrogateescape")).mkdir()
    for number in range(10):
        Path((odd + b"/%d.png" % number).decode(errors="surrogateescape")).write_bytes(make_image("rgb", 100 + number))
    data = look_at_data(build_config({"data.name": "imagefolder", "data.root": str(root)}, "test").data)
    assert (data.num_train, list(data.classes)) == (14, ["o\udcffdd", "plain"])
    assert r"o\udcffdd" in section_of(data)
    words = [sys.executable, "-m", "sweep.cli", "check", "imagefolder", "--set", f"data.root={root}"]
    done = subprocess.run([*words, "--root", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"o\udcffdd" in done.stdout


def test_of_very_many_sizes_the_most_frequent_are_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    files = {f"{label}/{side}.png": f"rgb@{side}x8" for label in "ab" for side in range(8, 113)}
    files |= list_images({"a/more": 7, "b/more": 7})
    root = write_files(tmp_path / "images", files)
    values = {"data.name": "imagefolder", "data.root": str(root), "data.image_size": 8}
    data = look_at_data(build_config(values, "test").data)
    assert len(data.sizes) == 101
    assert data.sizes["8 x 8"] == 16
    assert data.sizes["others"] == 10  # 105 sizes, of which 5 with 2 images each are not named
    assert re.search(
        r"sizes: 8 x 8 \(16\)(, \d+ x 8 \(2\)){3}, other sizes \(202\); modes", "\n".join(format_data(data))
    )
