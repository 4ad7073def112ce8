"""``sweep list`` and ``sweep check``: what there is to run, and what is wrong with a study or with this machine.

A study that runs prints its data and its known pitfalls from here, too.
"""

import json
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from reports import labels
from studies import shipped_studies, template
from sweep.cli.answer import describe_findings
from sweep.cli.app import print_answer, print_lines, print_table
from sweep.cli.arguments import RUNS, AsJson, Plugin, Root, Sets, find_records, load_records, parse_sets, use_plugin
from sweep.config.advice import Advice, find_pitfalls
from sweep.config.errors import InputError, describe_unknown, hide_credentials, show_name
from sweep.config.metrics import METRICS, format_count
from sweep.config.sections import list_fields
from sweep.config.study import StudySpec, describe_cost
from sweep.config.study_file import load_study
from sweep.config.tables import DATASETS, MODELS, OPTIMIZERS, SCHEDULES
from sweep.config.trial import config_fields
from sweep.records.inputs import DataSummary

if TYPE_CHECKING:
    import pandas as pd

    from sweep.records.frames import Frames


_INDENT = "    "
_LEAST_WIDTH = 20
_TEMPLATE = "template"


def list_studies(
    name: Annotated[
        str | None, typer.Argument(help="Study whose file is printed; `template`: a commented study to start from.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Every key of a study file, with its default.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the shipped studies, print one, or list all keys."""
    if name is not None and keys:
        raise InputError("sweep list: a study and --keys exclude each other; leave one out.")
    if name is not None:
        text = _read_study_file(name)
        print_answer({"name": name, "text": text}, text.splitlines(), as_json=as_json)
    elif keys:
        rows = list(_list_keys())
        print_answer(rows, _format_keys(rows), as_json=as_json)
    else:
        specs = [load_study(path) for path in shipped_studies().values()]
        document = [{"name": spec.name, "question": spec.question, "cost": describe_cost(spec)} for spec in specs]
        print_answer(document, _format_studies(document), as_json=as_json)


def _read_study_file(name: str) -> str:
    shipped = shipped_studies()
    if name != _TEMPLATE:
        if name not in shipped:
            raise InputError(describe_unknown("study", name, (*shipped, _TEMPLATE)))
        return shipped[name].read_text(encoding="utf-8")
    text = template()
    tables: dict[str, Iterable[str]] = {
        "models": MODELS,
        "data sets": DATASETS,
        "optimizers": OPTIMIZERS,
        "schedules": SCHEDULES,
    }
    for entries, table in tables.items():
        text = text.replace(f"<{entries}>", " ".join(table))
    return text


def _format_studies(studies: list[dict[str, str]]) -> Iterator[str]:
    # question and cost below the name: side by side they would be columns of a few words
    width = max(shutil.get_terminal_size().columns - len(_INDENT), _LEAST_WIDTH)
    for study in studies:
        yield study["name"]
        for key in ("question", "cost"):
            lines = textwrap.wrap(study[key], width=width, break_long_words=False, break_on_hyphens=False)
            yield from (_INDENT + line for line in lines)


def _list_keys() -> Iterator[dict[str, Any]]:
    # base and space hold configuration keys and are none themselves
    study = {path: field for path, field in list_fields(StudySpec).items() if path not in ("base", "space")}
    for where, fields in (("study", study), ("configuration", config_fields())):
        for path, field in fields.items():
            yield {
                "key": "script.NAME" if path == "script" else path,
                "where": where,
                "is_required": field.is_required(),
                "default": None if field.is_required() or field.default_factory else field.default,
                "meaning": field.description or "",
            }


def _format_keys(rows: list[dict[str, Any]]) -> Iterator[str]:
    heads = {"study": "keys of the study", "configuration": "configuration keys, in [base], [space] and --set"}
    for where, group in groupby(rows, lambda row: row["where"]):
        yield heads[where]
        for row in group:
            default = json.dumps(row["default"]) if row["default"] is not None else "absent"
            yield f"  {row['key']} ({'required' if row['is_required'] else f'default: {default}'})"
            yield f"      {row['meaning']}"


# ---------------------------------------------------------------------- check


class Check(NamedTuple):
    """One result. ``noticed`` casts no doubt on what was measured; with a ``FAIL`` no study can run."""

    name: str
    status: Literal["ok", "noticed", "note", "FAIL"]
    found: str
    remedy: str = ""


def check(
    study: Annotated[
        str | None, typer.Argument(help="Study to check: shipped, a .toml file, or recorded; absent: this machine.")
    ] = None,
    sets: Sets = None,
    root: Root = RUNS,
    plugin: Plugin = None,
    script: Annotated[
        bool, typer.Option("--script", help="Run the study's script for seconds: does it do what it is asked?")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check a study and its records, or this machine. Nothing is trained, except with --script. Images are counted,
    known pitfalls have their reason and remedy; of trials on record, what held them up and which times are in doubt is
    listed."""
    use_plugin(plugin)
    changes = parse_sets(sets)
    if study is None:
        if changes:
            raise InputError("sweep check: --set requires a study.")
        checks = list(check_machine())
        if as_json:
            print_answer([item._asdict() for item in checks], (), as_json=True)
        else:
            _print_checks(checks)
        return 1 if any(item.status == "FAIL" for item in checks) else 0
    if script:
        return _check_script(load_study(study, changes), as_json)
    is_file = study.endswith(".toml") or study in shipped_studies()
    place = None
    if not is_file:
        with suppress(InputError):  # the refusal of an unknown study lists the shipped ones
            place = find_records(study, root)
    if place is not None:
        if changes:
            raise InputError(f"--set: {study} is on record and cannot be changed; give the study's file.")
        return _check_records(load_records(place, root), as_json)
    return _check_study(load_study(study if is_file else hide_credentials(study), changes), root, as_json)


def _check_script(spec: StudySpec, as_json: bool) -> int:
    from sweep.script.check import check_script

    if spec.script is None:
        raise InputError(f"--script: study {spec.name} has no [script]; name its command there.")
    found = check_script(spec)
    document = {"rows": [row._asdict() for row in found.rows], "costs": found.costs, "is_followed": found.is_followed}
    if as_json:
        print_answer(document, (), as_json=True)
        return 0 if found.is_followed else 1
    heads = ("", "setting", "asked", "observed", "remedy")
    print_table([(row.status, row.setting, row.asked, row.observed, row.remedy) for row in found.rows], heads)
    for size, costs in found.costs.items():
        shown = ", ".join(f"{labels.metric_label(name).lower()} {labels.format_value(METRICS[name].unit, value)}"
                          for name, value in costs.items())  # fmt: skip
        print_lines([f"effective batch size {size}: {shown}"])
    return 0 if found.is_followed else 1


def _check_study(spec: StudySpec, root: Path, as_json: bool) -> int:
    from sweep.training.data.sources import check_inputs  # with NumPy and Pillow

    data, advice = None, _advise_on_machine(spec)
    if spec.script:
        spec.script.check()
        advice = [*find_pitfalls(spec), *advice]
    else:
        with show_inspection() as show:
            data = check_inputs(spec.corners.of("data", "model"), on_progress=show)  # of any device
        advice = [*find_pitfalls(spec, data.num_train), *advice]
    frames = None
    if (root / spec.name / "study.sqlite").exists():
        from sweep.records.loading import load_frames

        frames = load_frames(root / spec.name, spec.name, evaluations=True)
    _print_study(spec.name, spec, data, advice, frames, as_json)
    return 0


def _check_records(frames: "Frames", as_json: bool) -> int:
    from sweep.analysis.comparable import find_study_name

    spec, data = frames.spec, frames.data
    advice = find_pitfalls(spec, data.num_train if data else None) if spec else []
    name = ", ".join(frames.studies["study"]) or find_study_name(frames)
    _print_study(name, spec, data, advice, frames, as_json)
    return 0


def _print_study(
    name: str, spec: StudySpec | None, data: DataSummary | None, advice: Sequence[Advice], frames: "Frames | None",
    as_json: bool
) -> None:  # fmt: skip
    from sweep.analysis.answer import to_document
    from sweep.analysis.findings import UNSETTLED, evaluate_claims

    findings = evaluate_claims(frames) if advice and frames is not None else []
    measured = {item.name: item for item in findings if item.verdict not in UNSETTLED}
    checks = [] if frames is None else list(check_trials(frames))
    lines, documents = [f"{name}: {format_count(len(advice), 'known pitfall')}"], []
    for item in advice:
        lines += [f"  {item.key}: {item.statement}", f"    why: {item.reason}", f"    instead: {item.remedy}"]
        finding = measured.get(item.finding)
        documents.append(item._asdict() | {"finding": finding and to_document(finding)})
        if finding:
            lines += ["    measured here:", *(f"      {line}" for line in describe_findings([finding]))]
    lines += format_data(data) if data else [labels.explain_uncounted(spec)]
    trials = [item._asdict() for item in checks]
    document = {"study": name, "data": data and asdict(data), "advice": documents, "trials": trials}
    print_answer(document, lines, as_json=as_json)
    if checks and not as_json:
        _print_checks(checks)


def _print_checks(checks: Sequence[Check]) -> None:
    rows = [(item.status, item.name, item.found, item.remedy) for item in checks]
    print_table(rows, ("", "check", "found", "remedy"))


def print_advice(spec: StudySpec, command: str, num_train: int | None) -> None:
    """Prints one line on standard error for each known pitfall of the study, which has ``num_train`` training images,
    before it runs; ``command`` gives their reasons."""
    advice = find_pitfalls(spec, num_train)
    print_lines((f"advice on {item.key}: {item.statement}" for item in advice), err=True)
    if advice:
        print_lines([f"`{command}` gives the reasons and the remedies"], err=True)


def _advise_on_machine(spec: StudySpec) -> list[Advice]:
    # no refusal: a study may be checked on another machine than the one that runs it
    from sweep.executors.table import ExecutorSettings
    from sweep.search.session import check_devices  # with Optuna

    try:
        check_devices(spec, ExecutorSettings())
    except InputError as error:
        reason = "`sweep run` refuses the study on this machine."
        return [Advice("not_on_this_machine", "--on", str(error), reason, "run it on another machine, or change that")]
    return []


# ---------------------------------------------------------------------- the data of a study

_FEWEST_VALIDATION = 8  # images: of fewer the tolerance of sweep ask, two standard errors, exceeds 10 points
_FEWEST_OF_CLASS = 5  # images of a class, in all splits
_MOST_NAMED = 10  # classes in one warning


def format_data(data: DataSummary) -> list[str]:
    """The images by split and class, where they come from, and what is not used and why."""
    lines = [*_warn_of_few_images(data), f"data: {labels.describe_set(data)}"]
    if table := labels.list_classes(data):
        width = max(len(name) for name in ("class", *(name for name, _ in table.rows)))
        heads = f"{'class':{width}}" + "".join(f"{word:>12}" for word in labels.SPLIT_WORDS)
        rows = [f"{name:{width}}" + "".join(f"{count:>12,}" for count in counts) for name, counts in table.rows]
        lines += [f"  {line}" for line in (table.caption, heads, *rows)]
    if data.held_out:
        lines.append(f"  {show_name(data.held_out, shorten=False)}")
    if data.sizes:
        sizes, modes = labels.describe_kinds(data.sizes, "sizes"), labels.describe_kinds(data.modes, "modes")
        lines.append(f"  sizes: {sizes}; modes: {modes}")
    lines += [f"  {line}" for line in labels.describe_decoding(data)]
    lines += [f"  not used: {line}" for line in labels.list_unused(data)]
    lines += [f"  note: {note}" for note in labels.list_notes(data)]
    return [*lines, f"  digest {data.digest[:12]}"] if data.digest else lines


def _warn_of_few_images(data: DataSummary) -> Iterator[str]:
    # with so few the noise of a single accuracy is larger than any difference between batch sizes
    if data.num_val is not None and data.num_val < _FEWEST_VALIDATION:
        yield (
            f"WARNING: no answer is possible with {format_count(data.num_val, 'validation image')}: two equally good "
            "configurations differ by more than 10 points by chance; add images"
        )
    small = {name: sum(counts.values()) for name, counts in data.classes.items()}
    small = {name: count for name, count in small.items() if count < _FEWEST_OF_CLASS}
    if not small:
        return
    named = ", ".join(f"{show_name(name)} ({count})" for name, count in list(small.items())[:_MOST_NAMED])
    head = f"{format_count(len(small), 'class', 'classes')} of {len(data.classes)} with fewer than {_FEWEST_OF_CLASS}"
    lacks = "no answer is possible with" if len(data.classes) - len(small) < 2 else "accuracy means nothing for"
    yield f"WARNING: {lacks} {head} images: {named}; add images, or remove the class"


@contextmanager
def show_inspection() -> Iterator[Callable[[int, int, str], None]]:
    """A callback that shows on standard error what images are decoded into, and the progress; nothing where all is
    known already."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]:,.0f} images/s")
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    bars: list[TaskID] = []

    def show(num_done: int, num_images: int, stored: str) -> None:
        if not bars:
            print_lines([f"decoding {format_count(num_images, 'image')} once: {stored}"], err=True)
            progress.start()
            bars.append(progress.add_task("", total=num_images, completed=num_done, rate=0.0))
        progress.update(bars[0], completed=num_done, rate=progress.tasks[0].speed or 0.0)
        if num_done == num_images:
            progress.stop()  # the study draws on the terminal from here on

    try:
        yield show
    finally:
        progress.stop()


# ---------------------------------------------------------------------- this machine

_PACKAGES = ("torch", "torchvision", "optuna", "pandas", "matplotlib", "sqlalchemy", "nvidia-ml-py")
_MIN_FREE_BYTES = 1 << 30


def check_machine() -> Iterator[Check]:
    """What a study requires, then what it can do without."""
    tests: dict[str, Callable[[], str]] = {name: partial(version, name) for name in _PACKAGES}
    tests |= {
        "device": _find_device,
        "torchvision models": lambda: import_module("sweep.training.vision").__name__,
        "record store": _try_store,
    }
    for name, test in tests.items():
        yield _try(name, test, "FAIL", "install: make setup")
    yield _try("NVIDIA driver", _find_driver, "note", "none is needed on a CPU; on a GPU machine install the driver")
    yield _try("optuna-dashboard", partial(version, "optuna-dashboard"), "note", "optional: the extra [dashboard]")
    yield _try("cache", _find_cache, "FAIL", "set SWEEP_CACHE_BYTES to a number of bytes, or leave it out")
    free = shutil.disk_usage(Path.cwd()).free
    yield Check("disk", "ok" if free >= _MIN_FREE_BYTES else "note", f"{free / 2**30:.1f} GiB free")


def _find_cache() -> str:
    from sweep.training.data.cache import find_cache_folder, measure_cache

    taken, limit = (labels.format_value("bytes", count) for count in measure_cache())
    return f"{taken} of decoded images and facts, at most {limit}, in {find_cache_folder()}"


def _try(name: str, test: Callable[[], str], failure: Literal["note", "FAIL"], remedy: str) -> Check:
    try:
        return Check(name, "ok", test())
    except Exception as error:
        return Check(name, failure, f"{type(error).__name__}: {error}", remedy)


def _find_device() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"CPU, {torch.get_num_threads()} threads; times hold for this CPU only"


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


# ---------------------------------------------------------------------- trials on record

_AGAIN = "then train again with --fresh --no-reuse"
_REMEDIES = {
    **dict.fromkeys(
        ("uncertain_time", "slowed_by_others", "spread", "drift", "busy_host", "reference_drift"),
        f"close what else runs on the machine, {_AGAIN}",
    ),
    "few_steps": "a larger budget; until then take its times as a rough guide",
    "allocator_retries": "a smaller batch.micro",
    "other_process": f"end the other process or choose another device by --on, {_AGAIN}",
    "throttled": f"better cooling, or a lower power limit that holds, {_AGAIN}",
}


def check_trials(frames: "Frames") -> Iterator[Check]:
    """One result for each bottleneck and each quality warning among the trials that were trained in this study, and
    for the images that they read and each note on them."""
    from sweep.analysis.costs import apply_times

    trials = apply_times(frames.trials, frames.probes)
    trials = trials[(trials["reused_from"] == "") & trials["outcome"].notna()]
    if frames.source is None:  # other programs determine none
        yield from _check_bottlenecks(trials)
    yield from _check_warnings(trials)
    if frames.data is None:
        yield Check("data", "note", labels.explain_uncounted(frames.spec))
        return
    yield Check("data", "ok", labels.describe_set(frames.data))
    for note in labels.list_notes(frames.data):
        yield Check("data", "note", note)


def _check_bottlenecks(trials: "pd.DataFrame") -> Iterator[Check]:
    from sweep.analysis.shortfalls import BOTTLENECKS

    counts = Counter(trials["bottleneck"].dropna())
    if not counts:
        num_trials = format_count(len(trials), "trial")
        yield Check("bottleneck", "ok", f"not determined in any of {num_trials}", "train for longer")
    for name, count in counts.most_common():
        affected = trials[(trials["bottleneck"] == name).fillna(False)]
        worst = affected.sort_values("train_seconds", ascending=False).iloc[0]  # a change gains most for the slowest
        meaning, remedy = BOTTLENECKS.get(name, (name, ""))
        yield Check(
            name.replace("_", " "),
            "ok" if name == "compute_bound" else "note",
            f"{count} of {len(trials)} trials: {meaning} (trial {worst['number']} for longest)",
            remedy,
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
