"""Whatever is given as a name, a study file, a message or a record: it is taken, or refused in the user's words.

A hundred cases each at most, always the same; ``PROPERTY_CASES=1000``, as `make security` sets it, tries that many, and
others each time.
"""

import contextlib
import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from records_factory import add_trials, make_ending, make_evaluation, make_spec, make_store

from studies import shipped_studies
from sweep.cli.arguments import find_records, parse_sets
from sweep.config.errors import InputError, StoreError
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study, load_study
from sweep.records.database import study_lock
from sweep.records.files import export_frames, import_records
from sweep.records.frames import TRIAL_COLUMNS
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Evaluation, Message, Progress, decode_message, encode_message
from sweep.records.store import open_store

CASES = os.environ.get("PROPERTY_CASES")
EASY = settings(
    max_examples=int(CASES or 100), derandomize=CASES is None, database=None, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)  # fmt: skip
COSTLY = settings(EASY, max_examples=int(CASES or 30))
MAX_MESSAGE = 50_000  # characters; a page of complaints with the known keys

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@contextlib.contextmanager
def refused_in_words() -> Any:
    """Success, or an ``InputError`` that says something; anything else goes through."""
    words: str | None = None
    try:
        yield
    except InputError as error:
        words = str(error)
    assert words is None or (10 < len(words) < MAX_MESSAGE and "Traceback" not in words)


# ---------------------------------------------------------------------- names

ODD_NAMES = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="aZ09_-./\\~:% \0\n", max_size=12),
    st.sampled_from(["..", "/etc/passwd", "a/../../b", "CON", "nul", "Com1", "x" * 300, "\u0430dmin", "a\u202eb"]),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,70}", fullmatch=True),
)  # fmt: skip


@given(name=ODD_NAMES)
@example(name="a\n")
@example(name="x" * 65)
@EASY
def test_a_study_name_is_a_folder_of_the_root_or_refused(name: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with refused_in_words():
        spec = build_study({"name": name}, "test")
        with study_lock(root / spec.name):
            assert (root / name).resolve().parent == root.resolve()
            assert name.isascii()
            assert len(name) <= 64
        shutil.rmtree(root / name)
        assert list(root.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


@given(place=ODD_NAMES)
@EASY
def test_a_place_that_is_none_is_refused(place: str, tmp_path: Path) -> None:
    with refused_in_words():
        load_frames(find_records(f"{place} ", tmp_path))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- study files

SHIPPED = [path.read_text() for path in shipped_studies().values()]
KEYS = [
    "name", "question", "seed", "trials", "timeout", "trial_timeout", "objectives", "sampler", "pruner",
    "confirm", "base", "space", "base.batch", "batch.micro", "batch.global", "optimizer.lr", "data.root", "model.name",
    "budget.epochs", "schedule.warmup", "schedule.milestones", "schedule", "confirm.seeds", "base.batch.micro", "",
]  # fmt: skip
VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=12).map(json.dumps),
    st.lists(st.integers(-3, 2**70), max_size=3).map(str),
    st.sampled_from(["true", "2020-01-01", "{}", "[[]]", "{a={b=1}}", "{choice=[1,'a']}", "{int=[1,9]}"]),
    st.builds("{{{}=[{},{}]}}".format, st.sampled_from(["log2", "int", "log", "float"]), st.integers(), st.floats()),
    st.sampled_from(["'10 epochs'", "'1e400'", "'nan'", "inf", "-0.0", "'0.5, 0.75'", "'9h'", "'resnet8'", "'auto'"]),
)  # fmt: skip
PAIRS = st.tuples(st.sampled_from(KEYS) | st.text(max_size=10), VALUES)


@st.composite
def study_files(draw: st.DrawFn) -> str:
    """A shipped study with lines taken out, twice or in place of others; or one of keys and values that do not fit."""
    lines = draw(st.sampled_from([*SHIPPED, 'name = "a"\n'])).splitlines()
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(len(lines) - 1, 0)))
        key, value = draw(PAIRS)
        new = draw(st.sampled_from([f"{key} = {value}", f"{json.dumps(key)} = {value}", f"[{key}]", lines[at], ""]))
        lines[at : at + draw(st.integers(0, 1))] = [new]
    return "\n".join(lines)


@given(text=study_files() | st.text(max_size=60), changes=st.lists(PAIRS, max_size=2))
@EASY
def test_a_study_file_is_read_or_refused(text: str, changes: list[tuple[str, str]], tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with refused_in_words():
        spec = load_study(path, parse_sets([f"{key}={value}" for key, value in changes]))
        assert StudySpec.model_validate_json(spec.model_dump_json(by_alias=True)) == spec
        assert spec.corners.first.seed == spec.seed or "seed" in spec.space
    assert list(tmp_path.iterdir()) == [path]


@given(table=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5))
@EASY
def test_a_study_of_any_types_is_built_or_refused(table: dict[str, Any]) -> None:
    with refused_in_words():
        spec = build_study({"name": "a", **table}, "test")
        assert StudySpec.model_validate_json(spec.model_dump_json(by_alias=True)) == spec


# ---------------------------------------------------------------------- messages

SENT: list[Message] = [
    make_ending(1, environment={"a": {"b": 1}}),
    make_evaluation(5),
    Progress(step=1, num_steps=2, epoch=0.5, images_per_second=10.0),
]


@st.composite
def mutated_messages(draw: st.DrawFn) -> bytes:
    fields = json.loads(encode_message(draw(st.sampled_from(SENT))))
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from([*fields, "kind", "nonsense"]))
        fields[key] = draw(JSON)
    return json.dumps(fields).encode()


@given(line=mutated_messages() | st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@example(line=b"[" * 100_000)
@example(line=b'{"kind": "ending", "outcome": "splendid"}')
@EASY
def test_a_line_is_a_message_of_declared_types_or_refused(line: bytes) -> None:
    try:
        message = decode_message(line)
    except ValueError:
        return
    assert repr(decode_message(encode_message(message))) == repr(message)
    if isinstance(message, Ending):
        assert all(isinstance(value, int | float) for value in message.measurements.values())
        assert isinstance(message.error, str)
    elif isinstance(message, Evaluation):
        assert isinstance(message.step, int)
        assert isinstance(message.val_loss, float)


# ---------------------------------------------------------------------- records


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of three trials (``s``) and its export (``out``)."""
    folder = tmp_path_factory.mktemp("recorded")
    with contextlib.closing(make_store(folder / "s" / "study.sqlite", make_spec())) as store:
        add_trials(store, ["complete", None, "crashed"])
    export_frames(load_frames(folder / "s", evaluations=True, correct_images=True), folder / "out")
    return folder


CELLS = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=20), st.binary(max_size=20),
    st.sampled_from(["[]", "{}", "splendid", "2020-01-01", -1, 1e308, 2**62]),
)  # fmt: skip


TABLES = st.sampled_from(["trials", "studies", "evaluations", "attempts", "environments"])


@given(table=TABLES, cell=CELLS, at=st.integers(0, 400), whole=st.integers(0, 9))
@COSTLY
def test_an_export_of_any_cells_is_read_or_refused(
    table: str, cell: Any, at: int, whole: int, recorded: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("case")
    shutil.copytree(recorded / "out", place / "out")
    path = place / "out" / f"{table}.parquet"
    frame = pd.read_parquet(path)
    name = list(frame)[at % len(frame.columns)]
    frame.assign(**{name: pd.Series([cell] * len(frame), index=frame.index)}).to_parquet(path, index=False)
    with refused_in_words():
        frames = load_frames(place / "out", evaluations=True)
        assert list(frames.specs) == list(frames.studies["study"])
        assert [str(frames.trials[each.name].dtype) for each in TRIAL_COLUMNS] == [each.dtype for each in TRIAL_COLUMNS]
    if whole == 0:  # a store takes ten times as long as all the rest
        with refused_in_words(), contextlib.closing(open_store(place / "new.sqlite", create=True)) as store:
            import_records(place / "out", store)
            assert store.study_names() == list(frames.specs)
    assert {entry.name for entry in place.iterdir()} <= {"out", "new.sqlite"}
    shutil.rmtree(place)


@given(table=TABLES, cell=CELLS, at=st.integers(0, 400))
@COSTLY
def test_a_file_of_any_cells_is_read_or_refused(
    table: str, cell: Any, at: int, recorded: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("case") / "study.sqlite"
    shutil.copy(recorded / "s" / "study.sqlite", place)
    with contextlib.closing(sqlite3.connect(place)) as connection, contextlib.suppress(sqlite3.Error):
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info(sweep_{table})")]
        with connection:  # SQLite takes any value into any column
            connection.execute(f'UPDATE sweep_{table} SET "{columns[at % len(columns)]}" = ?', (cell,))
    with refused_in_words(), contextlib.suppress(StoreError):
        frames = load_frames(place, evaluations=True)
        assert all(name == spec.name for name, spec in frames.specs.items() if name == "s")
        assert [str(frames.trials[column.name].dtype) for column in TRIAL_COLUMNS] == [c.dtype for c in TRIAL_COLUMNS]
    shutil.rmtree(place.parent)
