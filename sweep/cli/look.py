"""The commands that look around: ``list``, ``new``, ``doctor``."""

import json
import shutil
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import chain, groupby
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from studies import shipped_studies, template
from sweep.cli.app import print_answer, print_table
from sweep.cli.arguments import choose_study_name, find_records, write_new_study
from sweep.cli.options import RUNS, AsJson, Root
from sweep.config.errors import InputError
from sweep.config.metrics import format_count
from sweep.config.sections import list_fields
from sweep.config.study import StudySpec, describe_cost
from sweep.config.study_file import load_study
from sweep.config.trial import config_fields

if TYPE_CHECKING:
    import pandas as pd

    from sweep.records.frames import Frames


_INDENT = "    "
_LEAST_WIDTH = 20
_HEADS = {"study": "keys of the study", "configuration": "configuration keys, in [base], [space] and --set"}


def list_studies(
    keys: Annotated[bool, typer.Option("--keys", help="List every key of a study file instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the shipped studies, or all keys of a study file. A study has its question and cost, a key its default."""
    if keys:
        rows = list(_list_keys())
        print_answer(rows, _format_keys(rows), as_json=as_json)
        return
    specs = [load_study(path) for path in shipped_studies().values()]
    document = [{"name": spec.name, "question": spec.question, "cost": describe_cost(spec)} for spec in specs]
    # question and cost below the name: side by side they would be columns of a few words
    width = max(shutil.get_terminal_size().columns - len(_INDENT), _LEAST_WIDTH)
    wrap = partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    lines = [[each["name"], *(_INDENT + line for key in ("question", "cost") for line in wrap(each[key]))]
             for each in document]  # fmt: skip
    print_answer(document, chain.from_iterable(lines), as_json=as_json)


def _list_keys() -> Iterator[dict[str, Any]]:
    # base and space hold configuration keys and are none themselves
    study = {path: field for path, field in list_fields(StudySpec).items() if path not in ("base", "space")}
    for where, fields in (("study", study), ("configuration", config_fields())):
        for path, field in fields.items():
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            yield {
                "key": path,
                "where": where,
                "is_required": field.is_required(),
                "default": None if field.is_required() else field.default,
                "unit": extra.get("unit", ""),
                "meaning": field.description or "",
            }


def _format_keys(rows: list[dict[str, Any]]) -> Iterator[str]:
    for where, group in groupby(rows, lambda row: row["where"]):
        yield _HEADS[where]
        for row in group:
            unit = f", in {row['unit']}" if row["unit"] else ""
            default = json.dumps(row["default"]) if row["default"] is not None else "absent"
            yield f"  {row['key']} ({'required' if row['is_required'] else f'default: {default}'}{unit})"
            yield f"      {row['meaning']}"


def new(
    path: Annotated[Path, typer.Argument(help="The study file to create, such as my_study.toml.")],
    is_asked: Annotated[bool, typer.Option("--ask", help="Fill it from a few questions, as `sweep ask` does.")] = False,
) -> int:
    """Write a commented study file that runs as it is."""
    if is_asked:
        from sweep.cli.ask import ask

        return ask(path)
    if path.suffix != ".toml":
        raise InputError(f"sweep new {path}: the name of a study file ends in .toml.")
    text = _fill_template().replace('name = "my_study"', f'name = "{choose_study_name(path)}"', 1)
    write_new_study(path, text)
    typer.echo(f"wrote {path}; run it with: sweep run {path}")
    return 0


def _fill_template() -> str:
    from sweep.config.tables import DATASETS, MODELS, OPTIMIZERS, SCHEDULES

    text = template()
    tables = (("models", MODELS), ("data sets", DATASETS), ("optimizers", OPTIMIZERS), ("schedules", SCHEDULES))
    for kind, table in tables:
        text = text.replace(f"<{kind}>", " ".join(table))
    return text


def doctor(
    study: Annotated[
        str | None, typer.Argument(help="Diagnose the trials of this study: its folder, or its name under the root.")
    ] = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> int:
    """Check this machine, or diagnose the trials of a study. Reports bottlenecks and quality warnings with a remedy
    for each."""

    if study is None:
        found = list(check_machine())
    else:
        from sweep.records.loading import load_frames

        found = list(check_trials(load_frames(find_records(study, root))))
    if as_json:
        typer.echo(json.dumps([check._asdict() for check in found]))
    else:
        rows = [(check.status, check.name, check.found, check.remedy) for check in found]
        print_table(rows, ("", "check", "found", "remedy"))
    return 1 if any(check.status == "FAIL" for check in found) else 0


# The checks of ``sweep doctor``: whether this machine can run studies, and what held up the trials of one.

_PACKAGES = ("torch", "torchvision", "optuna", "pandas", "matplotlib", "sqlalchemy", "nvidia-ml-py")
_MIN_FREE_BYTES = 1 << 30
_AGAIN = "then train again with --fresh --no-reuse"
_REMEDIES = {
    **dict.fromkeys(
        ("uncertain_time", "slowed_by_others", "slower_than_alone", "spread", "drift", "busy_host", "reference_drift"),
        f"close what else runs on the machine, {_AGAIN}",
    ),
    "few_steps": "a larger budget; until then take its times as a rough guide",
    "allocator_retries": "a smaller batch.micro",
    "other_process": f"end the other process or choose another --device, {_AGAIN}",
    "throttled": f"better cooling, or a lower power limit that holds, {_AGAIN}",
    "clock_drift": f"fix the clocks, or give the device a warm-up, {_AGAIN}",
}


class Check(NamedTuple):
    """One result. ``noticed`` is there and no doubt about what was measured; with a ``FAIL`` no study can run."""

    name: str
    status: Literal["ok", "noticed", "note", "FAIL"]
    found: str
    remedy: str = ""


def check_machine() -> Iterator[Check]:
    """What a study requires, then what it can do without."""
    looks: dict[str, Callable[[], str]] = {name: partial(version, name) for name in _PACKAGES}
    looks |= {"device": _find_device, "torchvision models": _import_vision, "record store": _try_store}
    for name, look in looks.items():
        yield _try(name, look, "FAIL", "install: make setup")
    yield _try("NVIDIA driver", _find_driver, "note", "none is needed on a CPU; on a GPU machine install the driver")
    yield _try("optuna-dashboard", partial(version, "optuna-dashboard"), "note", "optional: the extra [dashboard]")
    free = shutil.disk_usage(Path.cwd()).free
    yield Check("disk", "ok" if free >= _MIN_FREE_BYTES else "note", f"{free / 2**30:.1f} GiB free")


def _try(name: str, look: Callable[[], str], failure: Literal["note", "FAIL"], remedy: str) -> Check:
    try:
        return Check(name, "ok", look())
    except Exception as error:
        return Check(name, failure, f"{type(error).__name__}: {error}", remedy)


def _find_device() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"CPU, {torch.get_num_threads()} threads; times hold for this CPU only"


def _import_vision() -> str:
    import sweep.training.vision

    return f"import ({sweep.training.vision.__name__})"


def _try_store() -> str:
    from sweep.records.store import open_store

    with tempfile.TemporaryDirectory() as folder:
        open_store(Path(folder) / "study.sqlite", create=True).close()
    return "an SQLite file opens and commits"


def _find_driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    driver = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    return str(driver)


def check_trials(frames: "Frames") -> Iterator[Check]:
    """One result for each bottleneck and each quality warning among the trials that were trained in this study, and
    for the images that they read and each note on them."""
    from reports import labels
    from sweep.analysis.costs import apply_times

    trials = apply_times(frames.trials, frames.probes)
    trials = trials[(trials["reused_from"] == "") & trials["outcome"].notna()]
    yield from _check_bottlenecks(frames, trials)
    yield from _check_warnings(trials)
    if frames.data is None:
        yield Check("data", "note", labels.NOT_COUNTED)
        return
    yield Check("data", "ok", labels.describe_set(frames.data))
    for note in labels.list_notes(frames.data):
        yield Check("data", "note", note)


def _check_bottlenecks(frames: "Frames", trials: "pd.DataFrame") -> Iterator[Check]:
    from sweep.analysis.shortfalls import BOTTLENECK_MEANINGS, suggest_remedy
    from sweep.analysis.statistics import plain_value, read_numbers
    from sweep.records.records import CONFIG_COLUMNS

    num_processors = int(max(filter(isfinite, read_numbers(frames.environments, "num_cpus")), default=1))
    counts = Counter(trials["bottleneck"].dropna())
    if not counts:
        num_trials = format_count(len(trials), "trial")
        yield Check("bottleneck", "ok", f"not determined in any of {num_trials}", "train for longer")
    for name, count in counts.most_common():
        affected = trials[(trials["bottleneck"] == name).fillna(False)]
        worst = affected.sort_values("train_seconds", ascending=False).iloc[0]  # a change gains most for the slowest
        meaning = f"{BOTTLENECK_MEANINGS.get(name, name)} (trial {worst['number']} for longest)"
        values = {column.path: plain_value(worst[column.name]) for column in CONFIG_COLUMNS}
        yield Check(
            name.replace("_", " "),
            "ok" if name == "compute_bound" else "note",
            f"{count} of {len(trials)} trials: {meaning}",
            suggest_remedy(name, values, num_processors),
        )


def _check_warnings(trials: "pd.DataFrame") -> Iterator[Check]:
    """A note where the flag is a doubt about a measured time and no other time stands for it."""
    from sweep.records.quality import MEANINGS, find_time_doubts

    rows = [text.split(",") for text in trials["quality_flags"]]
    for flag, count in Counter(flag for flags in rows for flag in flags if flag).most_common():
        text, num_lost = f"{count} of {len(rows)} trials: {MEANINGS.get(flag, flag)}", 0
        if find_time_doubts((flag,)):
            affected = trials[[flag in flags for flags in rows]]
            num_lost = int((affected["time_source"] == "").sum())
            text += f" (another time stands for {count - num_lost})" if num_lost < count else ""
        yield Check(flag.replace("_", " "), "note" if num_lost else "noticed", text, _REMEDIES.get(flag, ""))
