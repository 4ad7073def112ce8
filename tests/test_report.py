"""The report as files: page, pictures, commands, warnings, texts."""

import base64
import dataclasses
import gzip
import io
import json
import multiprocessing
import re
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from frames_factory import frames_of, make_frames, make_spec
from hostile import HOSTILE, hostile_frames
from markupsafe import escape
from matplotlib.image import imread
from records_factory import add_trials, make_store

from reports import write_report
from reports.draw import draw_picture
from reports.evidence import MAX_DETAILED, describe_basis, gather_evidence
from reports.figures.all_figures import GROUPS, make_figures
from reports.figures.batch import make_memory
from reports.labels import format_probability, format_value
from reports.page.data import write_study
from reports.page.page import _list_settings, render_page
from reports.page.tables import make_front_table, make_uses_table
from reports.texts import describe_batch_answer, describe_uses, list_reservations
from reports.writing import write_frames_report
from sweep.analysis.recommendation import recommend
from sweep.cli.answer import describe_recommendations
from sweep.cli.arguments import parse_sets
from sweep.config.commands import train_command
from sweep.config.errors import InputError
from sweep.config.study_file import load_study
from sweep.config.trial import build_config, flatten_config

SHADE = "all search trials, darker is more"
TWO = ["val_accuracy", "train_seconds"]


def page_of(frames):
    evidence = gather_evidence(frames)
    return render_page(evidence, make_figures(evidence))


def data_of(html):
    """What the page's script reads."""
    packed = re.search(r'<script type="application/gzip" id="data">([A-Za-z0-9+/=]+)</script>', html)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_page_and_a_picture_for_each_figure(tmp_path):
    frames = make_frames(20, confirm=1, objectives=TWO)
    path = write_frames_report(frames, tmp_path / "deep" / "report.html")
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


def test_a_card_for_each_use_that_the_records_answer():
    evidence = gather_evidence(make_frames(40, confirm=3))
    answer, cards = recommend(evidence.frames), describe_uses(evidence.answer)
    assert [card.title for card in cards if card.trial is not None] == [
        "Best accuracy", "Fastest", "Lowest memory", "Balanced",
    ]  # fmt: skip
    assert [card.title for card in cards if card.trial is None] == ["Fine-tuning", "On several devices"]
    assert all(card.missing.startswith("sweep ") for card in cards if card.trial is None)
    chosen, card = answer.uses["speed"], cards[1]
    seconds = chosen.values["train_seconds"]
    assert card.trial == chosen.number
    table = make_uses_table(evidence, cards)
    assert table.heads[:3] == ("Validation accuracy", "Training time", "Peak memory")
    (row,) = [row for row in table.rows if row.trial == chosen.number]
    assert row.cells[1].text == format_value("seconds", seconds.median)
    assert row.batch == str(chosen.global_batch_size)
    assert f"better by more than the tolerance is {format_probability(chosen.probability)} (" in card.confidence
    assert ("(settled)" in card.confidence) == chosen.is_settled
    config = flatten_config(build_config(parse_sets(shlex.split(row.command)[3::2]), "test"))
    assert {key: config[key] for key in chosen.settings} == {key: chosen.config[key] for key in chosen.settings}
    assert "3 configurations trained again with 3 fresh seeds" in describe_basis(evidence)


def test_uses_that_name_the_same_configuration_are_one_row_and_bars_share_a_scale():
    evidence = gather_evidence(make_frames(60, confirm=4))
    answer, cards = evidence.answer, describe_uses(evidence.answer)
    table = make_uses_table(evidence, cards)
    numbers = [item.number for item in answer.uses.values() if item.number is not None]
    assert [row.trial for row in table.rows] == list(dict.fromkeys(numbers))
    assert {card.title for row in table.rows for card in row.cards} == {
        card.title for card in cards if card.trial is not None
    }
    for column in range(2):  # memory has no interval here
        bars = [row.cells[column].bar for row in table.rows if row.cells[column].bar]
        assert min(left for left, *_ in bars) == 0.0
        assert max(left + width for left, width, _ in bars) == pytest.approx(100.0, abs=0.02)
        assert all(left <= middle <= left + width + 0.02 for left, width, middle in bars)
    named = {item.number: item.values["train_seconds"].median for item in answer.uses.values() if item.number}
    times = [(named[row.trial], row.cells[1].bar[2]) for row in table.rows]
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
    cards, batch = describe_uses(answer), describe_batch_answer(answer.batch_size)
    assert answer.uses["accuracy"].number is None
    command = answer.uses["accuracy"].missing
    assert "--set confirm.share=1.0" in command
    assert all(card.trial is None for card in cards)
    assert {card.missing for card in cards if card.title in ("Best accuracy", "Fastest")} == {command}
    assert f"not enough data; run: {command}" in "\n".join(describe_recommendations(answer, []))
    assert (batch.statements[0][1], batch.command) == ("not settled", command)
    html = page_of(frames)
    assert 'class="wide uses"' not in html
    assert command in html


def test_the_command_rebuilds_the_configuration():
    evidence = gather_evidence(make_frames(40, confirm=2))
    table = make_front_table(evidence)
    assert len(table.rows) >= 2
    assert table.rows[0].confirmed
    trials = evidence.trials.set_index("number")
    for row in table.rows:
        words = shlex.split(row.command)
        assert words[:2] == ["sweep", "train"]
        config = flatten_config(build_config(parse_sets(words[3::2]), "test"))
        numbers = evidence.configurations.set_index("number").loc[int(row.cells[0].text), "numbers"]
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
    raw = "<script>window", "<img src=x", "<svg onload", "<a href='https", "<b>bold", "<iframe", "<base", "<extra"
    assert [text for text in raw if text in head] == []
    assert html.count("</script>") == 3
    assert "NaN" not in json.dumps(data_of(html))
    assert rest
    for text in (HOSTILE[0], HOSTILE[6], HOSTILE[8]):  # as the name of the study
        assert page_of(hostile_frames((text, "other"))).count("</script>") == 3


def test_pictures_survive_hostile_texts():
    figures = make_figures(gather_evidence(hostile_frames())).figures
    assert len(figures) >= 8
    for figure in figures:
        assert imread(io.BytesIO(draw_picture(figure, dpi=40))).std() > 0.01
    for form in ("svg", "pdf"):
        assert len(draw_picture(figures[0], form)) > 10_000


@pytest.mark.slow
def test_a_hundred_thousand_trials_are_a_page_of_at_most_10_mb():
    some = make_frames(1000)

    def again(frame, turn):
        return frame.assign(number=frame["number"] + 1000 * turn)

    def many(frame):
        return pd.concat([again(frame, turn) for turn in range(100)], ignore_index=True)

    trials = many(some.trials)
    noise = np.random.default_rng(0).normal(1.0, 0.02, len(trials))
    trials["train_seconds"] = trials["train_seconds"] * noise
    trials["config.optimizer.lr"] = trials["config.optimizer.lr"].astype(float) * np.exp(noise)
    whole = {"trials": trials, "evaluations": many(some.evaluations), "attempts": many(some.attempts)}
    evidence = gather_evidence(dataclasses.replace(some, **whole))
    html = render_page(evidence, make_figures(evidence))
    assert len(html.encode()) <= 10e6
    data = data_of(html)
    assert len(data["details"]["number"]) <= MAX_DETAILED
    shades = [trace for figure in data["figures"] for trace in figure["panels"][0]["traces"] if trace["meta"] == SHADE]
    assert sum(count or 0 for row in shades[0]["z"] for count in row) == len(evidence.search)


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
        "RuntimeError: last line", "44 % of the trials gave no result",
    ):  # fmt: skip
        assert part in said


def test_a_sound_study_is_not_doubted_for_nothing():
    frames = make_frames(40, confirm=40)
    kept = frames.trials[frames.trials["outcome"] == "complete"]
    assert list_reservations(gather_evidence(dataclasses.replace(frames, trials=kept))) == []


def test_an_unwritable_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_frames_report(make_frames(0), tmp_path / "file" / "report.html")


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
        write_report(store.url)
    store.close()


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(InputError):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_processes_draw_the_same_pictures_and_end(tmp_path, monkeypatch):
    frames = make_frames(3, objectives=["val_accuracy"], space={"batch.micro": {"log2": [4, 6]}})
    monkeypatch.setattr("reports.figures.all_figures.GROUPS", {"Memory": (make_memory,)})
    monkeypatch.setattr("threading.active_count", lambda: 1)
    begun = set(multiprocessing.active_children())
    beside = write_frames_report(frames, tmp_path / "beside" / "report.html")
    assert set(multiprocessing.active_children()) <= begun
    monkeypatch.setattr("threading.active_count", lambda: 2)  # with which a fork is not safe
    alone = write_frames_report(frames, tmp_path / "alone" / "report.html")
    names = {path.name for path in beside.parent.iterdir()}
    assert {"report.html", "memory.png"} <= names == {path.name for path in alone.parent.iterdir()}
    assert all((beside.parent / name).read_bytes() == (alone.parent / name).read_bytes() for name in names)
