"""The map of columns: what is not stated is asked for, with the candidates; nothing is guessed."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.analysis.recommendation import recommend
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.foreign.column_map import write_draft
from sweep.foreign.foreign_records import load_foreign_frames
from sweep.records.frames import Frames
from sweep.records.loading import load_frames

GOLDEN = Path(__file__).parent / "golden" / "foreign"
HEADER = ("bs", "lr", "seed", "acc", "time", "mem", "gpu")
MAP = """
[columns]
"batch.global" = "bs"
"optimizer.lr" = "lr"
seed = "seed"
val_accuracy = { column = "acc", unit = "fraction" }
train_seconds = { column = "time", unit = "seconds" }
peak_memory_bytes = { column = "mem", unit = "bytes" }
device = "gpu"
"""
ROWS = [
    (batch, 0.1, seed, 0.9 + seed / 100, 50.0 + batch, 1000 + batch, "A100") for batch in (32, 64) for seed in (0, 1, 2)
]


def load(folder: Path, text: str = MAP, rows: list[Any] | None = None, header: tuple[str, ...] = HEADER) -> Frames:
    """The frames of a CSV with these rows under this map."""
    with (folder / "runs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *(ROWS if rows is None else rows)])
    (folder / "map.toml").write_text(text)
    return load_foreign_frames(folder / "runs.csv", folder / "map.toml")


def limits_of(frames: Frames) -> str:
    assert frames.source is not None
    return " ".join(frames.source.limits)


def drop(text: str, *names: str) -> str:
    return "\n".join(line for line in text.splitlines() if not any(line.startswith(name) for name in names))


@pytest.mark.parametrize(("old", "new", "message"), [
    ('"bs"', '"batchsize"', "unknown column 'batchsize'."),
    ('"batch.global" = "bs"', "", "no column for the batch size: batch.global where it is the effective"),
    ("val_accuracy", "val_loss", "no choice of units"),
    ("val_accuracy", "val_acuracy", "unknown quantity 'val_acuracy'. Did you mean 'val_accuracy'?"),
    ('{ column = "acc", unit = "fraction" }', '"acc"', "the unit of column 'acc' is not given"),
    ('{ column = "acc", unit = "fraction" }', '"acc"', "fraction or percent"),
    ('unit = "seconds"', 'unit = "s"', "choose one of milliseconds, seconds, minutes, hours"),
    ('unit = "fraction"', 'unit = "?"', "its unit is open"),
    ('unit = "fraction"', 'unit = "fraction", take = "max"', "column 'acc' has one value per run"),
    ("[columns]", "[constants]\n\"seed\" = 1\n[columns]", "unknown key 'seed'"),
    ("[columns]", "[constants]\ndevice = \"B200\"\n[columns]", "device: it is a column and a constant"),
    ("[columns]", "own_seeds = true\n[columns]", "the seeds are in a column"),
    ("[columns]", "nmae = 1\n[columns]", "unknown key 'nmae'"),
    ("[columns]", "[outcomes]\nok = \"fine\"\n[columns]", "unknown outcome 'fine'"),
])  # fmt: skip
def test_a_map_that_does_not_fit_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in MAP
    with pytest.raises(InputError) as caught:
        load(tmp_path, MAP.replace(old, new, 1))
    assert message in str(caught.value)


@pytest.mark.parametrize(("place", "value", "message"), [
    (0, "many", "column 'bs', run 2: 'many' is no batch.global: Input should be a valid integer"),
    (0, "32.5", "column 'bs', run 2: '32.5' is no batch.global: Input should be a valid integer"),
    (3, "93.1", "run 2: val_accuracy: 93.1 fraction is no share between 0 and 1; is it unit = \"percent\"?"),
    (3, "-0.1", "val_accuracy: -0.1 fraction is no share between 0 and 1"),
    (4, "-5", "train_seconds: -5.0 is below 0"),
    (0, "0", "'0' is no batch.global: Input should be greater than or equal to 1"),
    (0, "-1", "'-1' is no batch.global: Input should be greater than or equal to 1"),
    (1, "0", "'0' is no optimizer.lr: Input should be greater than 0"),
    (1, "-0.1", "'-0.1' is no optimizer.lr: Input should be greater than 0"),
    (1, "inf", "'inf' is no optimizer.lr: Input should be less than or equal to 10000"),
    (4, "1:30", "'1:30' is no train_seconds: Input should be a valid number"),
    (2, 0, "runs 1 and 2 have equal settings and seed"),
])  # fmt: skip
def test_a_cell_that_is_none_of_its_quantity_is_refused(place: int, value: Any, message: str, tmp_path: Path) -> None:
    rows = [list(row) for row in ROWS]
    rows[1][place] = value
    with pytest.raises(InputError) as caught:
        load(tmp_path, rows=rows)
    assert message in str(caught.value)


def test_without_a_map_the_candidates_and_the_remedy_are_named() -> None:
    with pytest.raises(InputError) as caught:
        load_foreign_frames(GOLDEN / "wandb_table.csv")
    message = str(caught.value)
    for part in ("batch.global: 'batch_size'", "val_accuracy: 'val/acc'", "train_seconds: 'Runtime' or 'train_time_s'",
                 "peak_memory_bytes: 'mem_mib'", "is not guessed", "--draft map", "--columns map.toml`"):  # fmt: skip
        assert part in message


def test_without_a_device_times_and_memory_are_not_compared(tmp_path: Path) -> None:
    frames = load(tmp_path, drop(MAP, "device"))
    assert {"train_seconds", "peak_memory_bytes"}.isdisjoint(frames.trials.columns)
    assert "peak_memory_bytes and train_seconds are of machines unknown and are not compared" in limits_of(frames)
    answer = recommend(frames)
    assert answer.uses["accuracy"].number is not None
    assert answer.uses["speed"].number is None
    assert answer.uses["memory"].number is None


def test_equal_settings_without_seeds_are_refused_unless_each_run_had_its_own(tmp_path: Path) -> None:
    text = drop(MAP, "seed")
    with pytest.raises(InputError, match=r"runs 1 and 2 have equal settings, and no column is mapped as the seed: map"):
        load(tmp_path, text)
    frames = load(tmp_path, f"own_seeds = true\n{text}")
    # the first run of each configuration is what it may have been chosen by
    assert frames.trials["phase"].tolist() == ["search", "confirm", "confirm"] * 2


def test_a_seed_among_hyperparameters_is_asked_for(tmp_path: Path) -> None:
    text = """[columns]
"batch.global" = "params.batch_size"
val_accuracy = { column = "metrics.val/acc", unit = "fraction" }
"""
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(InputError, match=r"column 'params.seed' varies and may be the seed: map it"):
        load_foreign_frames(GOLDEN / "mlflow_search.csv", tmp_path / "map.toml")
    (tmp_path / "map.toml").write_text(text + 'seed = "params.seed"\n')
    frames = load_foreign_frames(GOLDEN / "mlflow_search.csv", tmp_path / "map.toml")
    assert len(set(frames.trials["config.params.lr"])) == 2, "what varies is no less a setting for having no key"
    assert "These tell configurations apart under their own names: params.lr." in limits_of(frames)


@pytest.mark.parametrize(("added", "num_rows", "phases"), [
    ("", 6, ["confirm"] * 6),  # equal seeds everywhere: nothing was chosen
    ("", 4, ["search", "confirm", "confirm", "search"]),
    ("search_seed = 1\n", 6, ["confirm", "search", "confirm"] * 2),
])  # fmt: skip
def test_seeds_that_did_not_choose_are_fresh(added: str, num_rows: int, phases: list[str], tmp_path: Path) -> None:
    assert load(tmp_path, added + MAP, ROWS[:num_rows]).trials["phase"].tolist() == phases


def test_units_are_converted_and_what_is_not_mapped_is_stated(tmp_path: Path) -> None:
    text = MAP.replace('"fraction"', '"percent"').replace('"seconds"', '"minutes"').replace('"bytes"', '"MiB"')
    row = load(tmp_path, text, [(32, 0.1, 0, "97.3", "2.5", "10", "A100")]).trials.iloc[0]
    assert (row["val_accuracy"], row["train_seconds"], row["peak_memory_bytes"]) == (0.973, 150.0, 10 * 2**20)
    frames = load(tmp_path, drop(MAP, "peak_memory", "train_sec", "seed", '"optimizer.lr"') + "\n", ROWS[::3])
    text = limits_of(frames)
    for part in ("nothing is answered about time", "nothing is answered about memory", "No seeds are on record",
                 "No learning rate is mapped", "all count as complete"):  # fmt: skip
        assert part in text
    assert frames.source is not None
    assert frames.source.ignored == ("lr", "seed", "time", "mem")
    assert recommend(frames).uses["accuracy"].number is None, "nothing is named without seeds"


def test_runs_that_do_not_count_are_left_out_and_counted(tmp_path: Path) -> None:
    crashed = (32, 0.1, 0, "", "", "", "A100")
    header, text = (*HEADER, "status"), MAP
    rows = [("", *ROWS[0][1:], "finished"), (*crashed, "crashed"), *((*row, "finished") for row in ROWS)]
    rows.append((128, *ROWS[0][1:], "running"))
    frames = load(tmp_path, text, rows, header)
    assert frames.trials["number"].tolist() == [3, 4, 5, 6, 7, 8], "a number is the place in the file"
    for part in ("1 run left out: they have no batch size.", "1 run left out: they have not ended.",
                 "1 run left out: they failed, and were repeated with equal settings and seed."):  # fmt: skip
        assert part in limits_of(frames)


def test_micro_batch_accumulation_and_a_setting_of_its_own_tell_configurations_apart(tmp_path: Path) -> None:
    header = (*HEADER, "accum", "mixup")
    text = MAP.replace("batch.global", "batch.micro").replace("seed =", '"batch.accumulation" = "accum"\nseed =')
    rows = [(*row, 4, row[2] % 2) for row in ROWS]
    frames = load(tmp_path, f'settings = ["mixup"]\n{text}', rows, header)
    assert frames.trials["global_batch_size"].tolist() == [4 * row[0] for row in ROWS]
    assert frames.trials["config.mixup"].tolist() == [0.0, 1.0, 0.0] * 2
    assert len(recommend(frames).configurations) == 4


def test_words_of_outcomes_are_asked_for(tmp_path: Path) -> None:
    header, rows = (*HEADER, "end"), [(*row, "ok" if row[2] else "nan loss") for row in ROWS]
    text = MAP + 'outcome = "end"\n'
    with pytest.raises(
        InputError, match=r"column 'end': what 'nan loss' is is not known; give its outcome in \[outcomes\]"
    ):
        load(tmp_path, text, rows, header)
    frames = load(tmp_path, f'{text}[outcomes]\nok = "complete"\n"nan loss" = "diverged"\n', rows, header)
    assert frames.trials["outcome"].tolist() == ["diverged", "complete", "complete"] * 2


# ---------------------------------------------------------------------- every number on the page is that of a row

_MADE_ROW = st.tuples(
    st.sampled_from([16, 32, 64]), st.sampled_from([0.01, 0.1]), st.integers(0, 5), st.floats(0.2, 1.0),
    st.floats(1.0, 1e5), st.integers(1, 2**40), st.sampled_from(["A", "B", ""]),
)  # fmt: skip


_MADE_ROWS = st.lists(_MADE_ROW, min_size=1, max_size=12, unique_by=lambda row: row[:3])


@settings(deadline=None, max_examples=10)
@given(rows=_MADE_ROWS)
def test_each_cell_of_the_frames_is_that_of_its_row(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    frames = load(tmp_path_factory.mktemp("made"), rows=rows)
    assert len(frames.trials) == len(rows)
    for trial in frames.trials.to_dict("records"):
        batch, rate, seed, accuracy, seconds, memory, device = rows[trial["number"] - 1]
        assert (trial["global_batch_size"], trial["config.optimizer.lr"], trial["seed"]) == (batch, rate, seed)
        assert trial["val_accuracy"] == accuracy
        known = {"train_seconds": seconds, "peak_memory_bytes": memory}
        for name, value in known.items() if any(row[6] for row in rows) else ():
            assert trial[name] == value if device else math.isnan(trial[name])


# ---------------------------------------------------------------------- the commands


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    load(tmp_path)
    return tmp_path


def test_an_imported_table_is_a_study_that_states_its_origin(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["recommend", "runs.csv"]) == 2
    assert "is not guessed" in capsys.readouterr().err
    assert run_app(["import", "runs.csv", "--columns", "map.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"study": "runs/runs", "num_trials": 6}
    direct, imported = load_foreign_frames("runs.csv", "map.toml"), load_foreign_frames("runs/runs")
    assert imported.trials.equals(direct.trials)
    assert imported.source == direct.source
    (files / "runs.csv").unlink()
    assert run_app(["recommend", "runs"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("These records are from elsewhere: CSV, runs.csv, 6 runs, SHA-256 ")
    assert "Columns ignored: none." in text
    assert [line.count("effective batch size") for line in text.splitlines() if line.startswith("  trial ")] == [1] * 4
    assert "sweep run" not in text, "no command of this program adds to records of another"
    assert run_app(["recommend", "runs", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"]["columns"]["acc"] == "val_accuracy in fraction"
    assert document["source"]["map"] == "map.toml"
    assert document["batch_size"]["named"]["config"]["optimizer.lr"] == 0.1
    assert run_app(["report", "runs"]) == 0
    page = (files / "runs/runs/report.html").read_text()
    for part in ("These records are from elsewhere", "records from elsewhere (CSV, SHA-256 ",
                 "val_accuracy in fraction",
                 "Nothing was trained or measured here", "2 configurations trained with 3 seeds each"):  # fmt: skip
        assert part in page
    assert "sweep train" not in page
    assert run_app(["claims", "runs"]) == 0
    capsys.readouterr()
    assert run_app(["trials", "runs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["trials"]
    assert [each["number"] for each in listed] == direct.trials["number"].tolist()
    assert run_app(["check", "runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["study"] == "runs"
    with pytest.raises(InputError, match=r"another program's records, .* load_foreign_frames"):
        load_frames(files / "runs/runs")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("arguments", "message"), [
    (["import", "runs.csv"], "is not guessed"),
    (["import", "absent.csv"], "nothing is there"),
    (["import", "runs.csv", "--study", "a"], "--study requires --draft"),
    (["import", "runs.csv", "--draft", "map.toml"], "map.toml exists already"),
    (["import", "runs.csv", "--columns", "map.toml"], "holds a study already"),
    (["run", "quickstart", "--set", "name=runs"], "runs/runs: it holds records of another program"),
    (["recommend", "damaged"], "imported.json"),
])  # fmt: skip
def test_imports_that_cannot_be_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["import", "runs.csv", "--columns", "map.toml"]) == 0
    Path("runs/damaged").mkdir()
    Path("runs/damaged/imported.json").write_text('{"kind": "batch-sweep import", "columns": 3}')
    assert run_app(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_draft_lists_the_candidates_and_leaves_open_what_it_cannot_know(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["import", "runs.csv", "--draft", "draft.toml", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["candidates"]["val_accuracy"] == ["acc"]
    assert document["columns"]["bs"]["num_distinct"] == 2
    complete = ["import", "runs.csv", "--columns", "draft.toml"]
    assert run_app(complete) == 2
    assert "its unit is open" in capsys.readouterr().err
    assert '# required: "val_accuracy" = { column = "?", unit = "?" }' in write_draft(["batch_size", "other"])
    draft = (files / "draft.toml").read_text()
    filled = draft.replace('"acc", unit = "?"', '"acc", unit = "fraction"').replace(
        '"time", unit = "?"', '"time", unit = "seconds"'
    )
    (files / "draft.toml").write_text(filled.replace('"mem", unit = "?"', '"mem", unit = "bytes"'))
    assert run_app(complete) == 2
    assert "no column for the batch size" in capsys.readouterr().err
    (files / "draft.toml").write_text((files / "draft.toml").read_text().replace('# "batch.global"', '"batch.global"'))
    assert run_app(complete) == 0
