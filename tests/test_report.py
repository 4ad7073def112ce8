"""The report as files and data: page, pictures, commands, warnings, tables, and what was found in the data."""

import base64
import dataclasses
import gzip
import hashlib
import html
import io
import math
import multiprocessing
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from frames_factory import estimates_of, frames_of, make_frames, make_spec
from hostile import HOSTILE, hostile_frames
from markupsafe import escape
from matplotlib.image import imread
from records_factory import add_trials, make_store

from reports import write_report
from reports.draw import draw_picture
from reports.evidence import Evidence, describe_basis, gather_evidence
from reports.figure import Absent
from reports.figures.all_figures import GROUPS, ReportFigures, make_figures
from reports.figures.batch import make_memory
from reports.labels import format_value, list_classes
from reports.page.data import describe_details, figures_json, write_study
from reports.page.page import _list_settings, render_page
from reports.page.tables import make_front_table, make_uses_table
from reports.texts import describe_batch_answer, describe_recommendation, list_reservations
from sweep.analysis.recommendation import recommend
from sweep.cli.answer import describe_recommendations
from sweep.cli.arguments import parse_sets
from sweep.cli.check import format_data
from sweep.config.commands import train_command
from sweep.config.errors import InputError, show_name
from sweep.config.metrics import format_probability
from sweep.config.study_file import load_study
from sweep.config.trial import build_config, flatten_config
from sweep.records.inputs import DataSummary, Ignored

TWO = ["val_accuracy", "train_seconds"]
RAW = (
    "<script>window", "<img src=x", "<svg onload", "<a href='https", "<b>bold", "<iframe", "<base", "<extra",
    "<style>*", "<meta http-equiv=refresh",
)  # fmt: skip
NO_FIGURES = ReportFigures(answer=Absent("", ""), figures=[], absent=[])
FIRST = ["Effective batch size", "Validation accuracy", "Training time", "Peak memory"]
VENDOR = Path(__file__).resolve().parent.parent / "reports/page/vendor"
PACKED = VENDOR / "plotly-cartesian.min.js.gz"


def page_of(frames):
    evidence = gather_evidence(frames)
    return render_page(evidence, make_figures(evidence))


def test_page_and_a_picture_for_each_figure(tmp_path):
    frames = make_frames(20, confirm=1, objectives=TWO)
    path = write_report(frames, tmp_path / "deep" / "report.html")
    names = {figure.name for figure in make_figures(gather_evidence(frames)).figures} | {"answer"}
    assert {each.name for each in path.parent.iterdir()} == {"report.html", *(f"{name}.png" for name in names)}
    for name in names:
        pixels = imread(path.with_name(f"{name}.png"))
        assert pixels.shape[0] > 200
        assert pixels.shape[1] > 900
        packed = (pixels[::3, ::3, :3] * 255).astype(np.int64) @ [65536, 256, 1]
        assert len(np.unique(packed)) > 20
        assert 0.01 < float((pixels[..., :3].min(axis=2) < 0.9).mean()) < 0.5


def test_equal_records_give_equal_bytes():
    first, second = (gather_evidence(make_frames(8, confirm=1, objectives=TWO)) for _ in range(2))
    made, again = make_figures(first), make_figures(second)
    assert render_page(first, made) == render_page(second, again)
    for form in ("png", "svg", "pdf"):
        assert draw_picture(made.figures[0], form) == draw_picture(again.figures[0], form)


SMALL_SPACE = {"batch.micro": {"log2": [4, 8]}, "optimizer.lr": {"choice": [0.02, 0.06, 0.2]}}  # which is tried whole


def make_cards(answer):
    return [describe_recommendation(item) for item in answer.uses.values()]


def test_a_card_for_each_use_that_the_records_answer():
    evidence = gather_evidence(make_frames(40, confirm=3, space=SMALL_SPACE))
    answer, cards = recommend(evidence.frames), make_cards(evidence.answer)
    assert [card.title for card in cards if card.trial is not None] == [
        "Best accuracy", "Fastest", "Lowest memory", "Balanced",
    ]  # fmt: skip
    assert [card.title for card in cards if card.trial is None] == ["Fine-tuning", "On several devices"]
    assert all(card.missing.startswith("sweep ") for card in cards if card.trial is None)
    chosen, card = answer.uses["speed"], cards[1]
    seconds = chosen.values["train_seconds"]
    assert card.trial == chosen.number
    table = make_uses_table(evidence, cards)
    assert table["heads"][:3] == ["Validation accuracy", "Training time", "Peak memory"]
    (row,) = [row for row in table["rows"] if row["trial"] == chosen.number]
    assert row["cells"][1].text == format_value("seconds", seconds.median)
    assert row["batch"] == str(chosen.global_batch_size)
    assert f"better by more than the tolerance is {format_probability(chosen.probability)}, " in card.confidence
    assert (", settled" in card.confidence) == chosen.is_settled
    config = flatten_config(build_config(parse_sets(shlex.split(row["command"])[3::2]), "test"))
    assert {key: config[key] for key in chosen.settings} == {key: chosen.config[key] for key in chosen.settings}
    assert "2 configurations trained again with 3 fresh seeds" in describe_basis(evidence)


def test_uses_that_name_the_same_configuration_are_one_row_and_bars_share_a_scale():
    evidence = gather_evidence(make_frames(60, confirm=4, space=SMALL_SPACE))
    answer, cards = evidence.answer, make_cards(evidence.answer)
    table = make_uses_table(evidence, cards)
    numbers = [item.number for item in answer.uses.values() if item.number is not None]
    assert [row["trial"] for row in table["rows"]] == list(dict.fromkeys(numbers))
    assert {card.title for row in table["rows"] for card in row["cards"]} == {
        card.title for card in cards if card.trial is not None
    }
    for column in range(2):  # memory has no interval here
        bars = [row["cells"][column].bar for row in table["rows"] if row["cells"][column].bar]
        assert min(left for left, *_ in bars) == 0.0
        assert max(left + width for left, width, _ in bars) == pytest.approx(100.0, abs=0.02)
        assert all(left <= middle <= left + width + 0.02 for left, width, middle in bars)
    named = {item.number: item.values["train_seconds"].median for item in answer.uses.values() if item.number}
    times = [(named[row["trial"]], row["cells"][1].bar[2]) for row in table["rows"]]
    assert len(times) > 1
    assert sorted(times) == sorted(times, key=lambda pair: pair[1])


def test_what_was_run_is_shown_with_its_defaults(tmp_path):
    evidence = gather_evidence(make_frames(12))
    listed = list(_list_settings(evidence))
    settings = {key: (value, source) for _, key, value, source in listed}
    assert {key: label for label, key, *_ in listed}["optimizer.weight_decay"] == "weight decay"
    assert settings["schedule.name"] == ("cosine", "default")
    assert all(settings[key] == ("searched", "the search space") for key in evidence.swept)
    given = [key for key, (_, source) in settings.items() if source == ""]
    assert {key for key in evidence.frames.spec.base if key in settings} <= {*given, *evidence.swept}
    (tmp_path / "made.toml").write_text(write_study(evidence.frames.spec))
    assert load_study(tmp_path / "made.toml") == evidence.frames.spec
    page = render_page(evidence, make_figures(evidence))
    assert "<code>sweep run made.toml" in page.partition('id="run"')[2]
    unknown = dataclasses.replace(evidence, frames=dataclasses.replace(evidence.frames, spec=None))
    assert "specification is not on record" in render_page(unknown, make_figures(unknown))


@pytest.mark.parametrize("num_seeds", [0, 1, 2])
def test_page_and_terminal_name_nothing_with_fewer_than_three_seeds(num_seeds):
    frames = make_frames(12, confirm=1)
    trials = frames.trials.drop(index=frames.trials.index[frames.trials["phase"] == "confirm"][num_seeds:])
    frames = dataclasses.replace(frames, trials=trials)
    answer = recommend(frames)
    cards, batch = make_cards(answer), describe_batch_answer(answer.batch_size)
    assert answer.uses["accuracy"].number is None
    command = answer.uses["accuracy"].missing
    # without one, the study has not come so far yet
    assert command == f"sweep run made.toml{' --set confirm.share=1.0' if num_seeds else ''}"
    assert all(card.trial is None for card in cards)
    assert {card.missing for card in cards if card.title in ("Best accuracy", "Fastest")} == {command}
    assert f"not enough data; to get it: {command}" in "\n".join(describe_recommendations(answer, []))
    assert (batch.statements[0][1], batch.command) == ("not settled", command)
    html = page_of(frames)
    assert 'class="wide uses"' not in html
    assert command in html


def test_the_command_rebuilds_the_configuration():
    evidence = gather_evidence(make_frames(40, confirm=2))
    table = make_front_table(evidence)
    assert len(table["rows"]) >= 2
    assert table["rows"][0]["confirmed"]
    trials = evidence.trials.set_index("number")
    for row in table["rows"]:
        words = shlex.split(row["command"])
        assert words[:2] == ["sweep", "train"]
        config = flatten_config(build_config(parse_sets(words[3::2]), "test"))
        numbers = evidence.configurations.set_index("number").loc[int(row["cells"][0].text), "numbers"]
        recorded = trials.loc[numbers[0]]
        for key, value in config.items():
            if value is not None:
                assert recorded[f"config.{key}"] == value


@pytest.mark.parametrize("text", [*HOSTILE, "true", "12", "1e3", " padded ", 'say "hi"', "it's", "[1]", "a\\b", ""])
def test_command_survives_any_text(text):
    text = text.replace("\x00", "")  # no argument can hold it
    changed = {"data.root": text, "data.subset": 5}
    settings = flatten_config(build_config({"data.name": "imagefolder"}, "test")) | changed
    words = shlex.split(train_command(settings, 3))
    assert parse_sets(words[3::2]) == {"data.name": "imagefolder", "data.root": text, "data.subset": 5, "seed": 3}


def test_hostile_texts_never_reach_the_page_raw():
    assert len(HOSTILE) == 30
    html = page_of(hostile_frames())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 2
    assert "unsafe-eval" not in policy
    head, _, rest = html.partition("<script>")  # the page before its own script
    for text in HOSTILE:
        assert str(escape(text.replace("\x00", ""))) in head.replace("\x00", "")
    assert [text for text in RAW if text in head] == []
    assert html.count("</script>") == 3
    packed = re.search(r'<script type="application/gzip" id="data">([A-Za-z0-9+/=]+)</script>', html)[1]
    assert "NaN" not in gzip.decompress(base64.b64decode(packed)).decode()  # it would be no JSON
    assert rest
    for text in (HOSTILE[0], HOSTILE[6], HOSTILE[8]):  # as the name of the study
        assert page_of(hostile_frames((text, "other"))).count("</script>") == 3


def test_pictures_survive_hostile_texts():
    figures = make_figures(gather_evidence(hostile_frames())).figures
    assert len(figures) >= 5
    for figure in figures:
        assert imread(io.BytesIO(draw_picture(figure, dpi=40))).std() > 0.01
    for form in ("svg", "pdf"):
        assert len(draw_picture(figures[0], form)) > 10_000


def test_warnings_are_said_when_due():
    rows = [{"number": n, "val_accuracy": 0.9, "train_seconds": 1.0, "config.optimizer.lr": n} for n in range(4)]
    rows[0] |= {"device": "cuda: H100", "quality_flags": "throttled,busy"}
    rows[1] |= {"environment_digest": "e2"}
    rows += [
        {"number": 4, "outcome": "crashed", "error": "boom\nRuntimeError: last line"},
        {"number": 5, "outcome": None},
        *({"number": n, "outcome": "out_of_memory"} for n in (6, 7, 8, 9)),
    ]
    said = " ".join(text for text, _ in list_reservations(gather_evidence(frames_of(make_spec(), rows))))
    for part in (
        "1 trial had no result", "Only 4 search trials completed", "2 environments", "1 trial crashed",
        "RuntimeError: last line", "44 % of the trials gave no result", "Every value is from one seed",
        "different devices", "The test split was not used",
    ):  # fmt: skip
        assert part in said


def test_a_sound_study_is_not_doubted_for_nothing():
    frames = make_frames(40, confirm=40)
    kept = frames.trials[frames.trials["outcome"] == "complete"]
    assert list_reservations(gather_evidence(dataclasses.replace(frames, trials=kept))) == []


def test_importing_reports_is_light():
    code = "import sys, reports; print([m for m in ('matplotlib', 'pandas', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_report_from_a_store_while_its_study_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("reports.figures.all_figures.GROUPS", {"Trade-offs": GROUPS["Trade-offs"]})
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete", "complete", "out_of_memory", "crashed", None])
    path = write_report(tmp_path)  # the writer still has the store open
    assert path == tmp_path / "report.html"
    html = path.read_text(encoding="utf-8").partition("<script>")[0]
    assert "2 search trials completed with one seed each" in html
    assert "1 trial had no result" in html
    assert (tmp_path / "fronts.png").read_bytes().startswith(b"\x89PNG")
    elsewhere = write_report(tmp_path, out=tmp_path / "other", formats=("svg",))
    assert (tmp_path / "other" / "fronts.svg").read_bytes().startswith(b"<?xml")
    assert not (tmp_path / "other" / "fronts.png").exists()
    with pytest.raises(InputError, match="jpg"):
        write_report(tmp_path, formats=("jpg",))
    assert elsewhere == tmp_path / "other" / "report.html"
    assert elsewhere.read_bytes() == path.read_bytes()
    with pytest.raises(InputError, match="--out DIR"):
        write_report(store.database.url)
    store.close()


def test_other_processes_draw_the_same_pictures_and_end(tmp_path, monkeypatch):
    frames = make_frames(3, objectives=["val_accuracy"], space={"batch.micro": {"log2": [4, 6]}})
    monkeypatch.setattr("reports.figures.all_figures.GROUPS", {"Memory": (make_memory,)})
    monkeypatch.setattr("threading.active_count", lambda: 1)
    begun = set(multiprocessing.active_children())
    beside = write_report(frames, tmp_path / "beside" / "report.html")
    assert set(multiprocessing.active_children()) <= begun
    monkeypatch.setattr("threading.active_count", lambda: 2)  # with which a fork is not safe
    alone = write_report(frames, tmp_path / "alone" / "report.html")
    names = {path.name for path in beside.parent.iterdir()}
    assert {"report.html", "memory.png"} <= names == {path.name for path in alone.parent.iterdir()}
    assert all((beside.parent / name).read_bytes() == (alone.parent / name).read_bytes() for name in names)


def test_unwritable_and_empty_places_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(make_frames(0), tmp_path / "file" / "report.html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        write_report(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return gather_evidence(make_frames(40, confirm=4))


def test_batch_accuracy_time_and_memory_come_first(evidence: Evidence):
    table = make_front_table(evidence)
    assert list(table["heads"][:5]) == ["Trial", *FIRST]
    sizes = evidence.configurations.set_index("number")["global_batch_size"]
    for row in table["rows"]:
        assert row["cells"][1].text == str(sizes[int(row["cells"][0].text)])
        assert all(cell.is_number for cell in row["cells"][:5])
    details = describe_details(evidence)
    assert [each["label"] for each in details["columns"][:5]] == ["Trial", *FIRST]
    assert all("keys" in each for each in details["columns"][:5])


def test_what_all_rows_share_is_stated_once(evidence: Evidence):
    frames = make_frames(40, confirm=4)
    frames.trials["config.batch.accumulation"] = 2  # the study sweeps it
    frames.trials["config.optimizer.name"] = "adamw"
    equal = gather_evidence(frames)
    assert "Accumulation" in make_front_table(evidence)["heads"]
    table, details = make_front_table(equal), describe_details(equal)
    assert "Accumulation" not in table["heads"]
    assert "accumulation 2" in table["common"].split(", ")
    assert all(len(row["cells"]) == len(table["heads"]) for row in table["rows"])
    labels = [each["label"] for each in details["columns"]]
    assert "Accumulation" in labels  # for the download, the filters and the chosen trial
    assert "Accumulation" not in [labels[place] for place in details["shown"]]
    assert details["constant"].split(", ")[0] == "accumulation 2"


def test_without_memory_no_column_of_it_is_kept():
    frames = make_frames(20, confirm=2, objectives=["val_accuracy", "train_seconds"])
    frames.trials["peak_memory_bytes"] = math.nan
    table = make_front_table(gather_evidence(frames))
    assert table["heads"][:4] == ["Trial", *FIRST[:3]]
    assert "Peak memory" not in table["heads"]
    assert "memory" not in table["common"]


def test_a_page_is_light():
    frames = make_frames(27, confirm=4)
    evidence = gather_evidence(dataclasses.replace(frames, probes=estimates_of(frames.spec)))
    assert len(render_page(evidence, make_figures(evidence)).encode()) <= 2e6


def test_the_drawing_script_is_the_one_that_its_readme_names():
    readme = (VENDOR / "README.md").read_text(encoding="utf-8")
    row = re.search(
        r"\| `(.+)` \| `plotly.js-cartesian-dist-min` \| ([\d.]+) \| MIT, in `(.+)` \| `(\w{64})` \|", readme
    )
    assert row is not None
    name, version, license_name, digest = row.groups()
    script = gzip.decompress((VENDOR / name).read_bytes())
    assert hashlib.sha256(script).hexdigest() == digest
    assert f"plotly.js (cartesian - minified) v{version}".encode() in script[:200]
    assert (
        (VENDOR / license_name).read_text(encoding="utf-8").startswith("MIT License\n\nCopyright (c) 2016-2024 Plotly")
    )


def test_every_trace_is_of_a_type_that_the_drawing_script_has(monkeypatch):
    known = set(re.findall(r'moduleType:"trace",name:"(\w+)"', gzip.decompress(PACKED.read_bytes()).decode()))
    monkeypatch.setattr("reports.evidence.MAX_DETAILED", 100)  # the others are shown as a density
    frames = make_frames(160, confirm=3)
    made = make_figures(gather_evidence(dataclasses.replace(frames, probes=estimates_of(frames.spec))))
    absent = {item.title for item in made.absent}
    assert absent == {"Gradient noise scale", "Critical batch size"}
    panels = [panel for figure in figures_json(made.figures)["figures"] for panel in figure["panels"]]
    assert {trace["type"] for panel in panels for trace in panel["traces"]} == {"scatter", "bar", "heatmap"} <= known


def section_of(data: DataSummary | None) -> str:
    """The page's section on the data, as it is in the file."""
    evidence = gather_evidence(dataclasses.replace(make_frames(8), data=data))
    page = render_page(evidence, NO_FIGURES)
    return page.partition('<section id="images"')[2].partition("</section>")[0]


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


def test_page_and_terminal_say_the_same_of_the_data():
    data = summary()
    terminal = "\n".join(format_data(data))
    page = html.unescape(re.sub(r"(\s*<[^>]+>\s*)+", "\n", section_of(data)))  # each element on a line of its own
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
def test_of_many_classes_the_smallest_and_the_largest_are_listed(num_classes: int, shown: int):
    table = list_classes(summary(num_classes))
    assert table is not None
    names = [name for name, _ in table.rows]
    assert len(names) == shown
    assert {"c00", "c04", f"c{num_classes - 1}", f"c{num_classes - 5}"} <= set(names)
    assert ("five smallest" in table.caption) == (shown == 10)


def test_notes_are_among_the_reservations_that_open_the_page():
    frames = make_frames(40, confirm=40)
    with_notes, without = (
        list_reservations(gather_evidence(dataclasses.replace(frames, data=data)))
        for data in (summary(), dataclasses.replace(summary(), notes=()))
    )
    assert [line for line in with_notes if line not in without] == [("Data: val/ shares 3 images with train/.", "")]


def test_a_set_that_is_not_there_yet_has_no_table():
    data = DataSummary(name="mnist", num_train=54_000, notes=("not counted, because it is not unpacked",))
    page = section_of(data)
    assert "mnist: not counted" in page
    assert "not counted, because it is not unpacked" in page
    assert "<table" not in page
    assert "<dl" not in page


def test_hostile_names_never_reach_the_page_or_the_terminal_raw():
    names = (*HOSTILE, "a\udcff", "b\nnote: trust me", "c\x1b[2J")
    data = DataSummary(
        name="imagefolder", root=HOSTILE[0], num_train=1, num_val=1, num_test=1,
        classes={name: {"train": 1, "val": 1, "test": 1} for name in names}, held_out=HOSTILE[2],
        ignored=tuple(Ignored(reason=name, num_files=2, examples=(name,)) for name in names), notes=names,
        digest="0" * 32,
    )  # fmt: skip
    page = render_page(gather_evidence(dataclasses.replace(make_frames(8), data=data)), NO_FIGURES)
    page.encode()  # a lone surrogate cannot be written
    assert [raw for raw in RAW if raw in page.partition("<script>")[0]] == []
    assert page.count("</script>") == 3
    lines = format_data(data)
    assert all("\n" not in line and line.encode() for line in lines)
    assert not any("\x1b" in line or "\u202e" in line for line in lines)
    assert [show_name(name) for name in names[-3:]] == [r"a\udcff", r"b\nnote: trust me", r"c\x1b[2J"]
