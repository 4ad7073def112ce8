"""What the pieces measure by whole trials and studies: the tests of the GPU paths, an out-of-memory, packed trials,
trainings on CIFAR-10, a study; and the table of all measures."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, mean, median, stdev
from typing import Any

import torch

from benchmarks.datasets import ARCHIVE, require_archive
from benchmarks.gpu.measures import SPEED_MEASURES, Job, Measure, bind_to_this_process, find_mean, find_median
from benchmarks.gpu.recipe import answer_recipe, collect_trainings
from benchmarks.gpu.sheet import Found, Sample
from studies import shipped_studies
from sweep.analysis.recommendation import as_document, recommend
from sweep.config.study_file import load_study
from sweep.config.trial import TrialConfig, build_config
from sweep.executors.devices import list_nvml_names
from sweep.executors.monitored import make_source
from sweep.executors.packed import share_gpu
from sweep.executors.process import ProcessExecutor
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Evaluation, Message, TrialTask
from sweep.search.single import train_trial
from sweep.training.data.folders import find_cache_folder
from sweep.training.trial import run_trial

# ---------------------------------------------------------------------- tests

_REPOSITORY = Path(__file__).resolve().parents[2]
_RESULT = re.compile(r"^(?P<file>\S+\.py)::(?P<name>.+?) (?P<result>PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_BROKEN = re.compile(r"^(?:ERROR|FAILED) (?P<file>\S+\.py)(?: - (?P<why>.*))?$")  # of a file that was not even read
_PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
_NUM_AFTER = 30
_NUM_FRESH = 3  # before, and as many after


def _run_tests(job: Job) -> Iterator[Sample]:
    """The results of each file of ``tests/gpu``; files whose results are kept are not run again."""
    seen = {sample["file"] for sample in job.kept}
    files = sorted(path.relative_to(_REPOSITORY).as_posix() for path in (_REPOSITORY / "tests/gpu").glob("test_*.py"))
    files.sort(key=lambda name: "agreement" in name)  # the longest last: a file that is cut short begins anew
    if left := [name for name in files if name not in seen]:
        yield from run_files(left)


def run_files(files: list[str]) -> Iterator[Sample]:
    """A sample for each file that pytest runs, as soon as the file is through.

    Raises:
        RuntimeError: no test was run.
    """
    command = [*bind_to_this_process(_PYTEST), *files, "-v", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "-o", "addopts=-ra"]
    command += ["-W", "ignore:This process:DeprecationWarning"]  # Python 3.12 on workers that are forked
    results: dict[str, dict[str, str]] = defaultdict(dict)
    told: set[str] = set()
    with subprocess.Popen(
        command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True, env=_test_environment()
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", file=sys.stderr)
            if match := _RESULT.match(line):
                for name in results.keys() - told - {match["file"]}:
                    yield {"file": name, "results": results[name]}
                told |= results.keys() - {match["file"]}
                results[match["file"]][match["name"]] = match["result"]
            elif (match := _BROKEN.match(line)) and match["file"] not in results:
                results[match["file"]]["(the whole file)"] = f"FAILED {match['why'] or ''}"
    for name in results.keys() - told:
        yield {"file": name, "results": results[name]}
    if not results:
        raise RuntimeError(f"pytest ran no test and ended with exit code {process.returncode}")


def count_failed(samples: Sequence[Sample]) -> dict[str, Found]:
    """How many tests failed, with their names; nothing is measured where every test was skipped."""
    results = [(each["file"], *pair) for each in samples for pair in each["results"].items()]
    failed = [f"{Path(file).name}::{name}" for file, name, result in results if result.startswith(("FAILED", "ERROR"))]
    counts = Counter(result.partition(" ")[0].lower() for _, _, result in results)
    note = ", ".join(f"{number} {result}" for result, number in sorted(counts.items()))
    note += f": {' '.join(failed)}" if failed else ""
    if not failed and not counts["passed"]:
        return {"tests": Found(n=0, note=note)}
    return {"tests": Found(measured=len(failed), n=len(results), note=note)}


def _test_environment() -> dict[str, str]:
    paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


# ---------------------------------------------------------------------- after an out-of-memory


def _run_after_out_of_memory(job: Job) -> Iterator[Sample]:
    """Trials in a process in which one ran out of memory, between trials in processes of their own."""
    config = _oom_config(job)
    yield from _run_fresh(config, job)
    if job.setting.device.type == "cuda":
        _run_out(job)
    num_kept = sum(sample["is_after"] for sample in job.kept)
    for _ in range(job.setting.pick(_NUM_AFTER, 2) - num_kept):
        job.require()
        yield _describe_ending(train_trial(config, device=str(job.setting.device)), is_after=True)
    yield from _run_fresh(config, job)


def _compare_with_fresh(samples: Sequence[Sample]) -> dict[str, Found]:
    """Each figure over the median of fresh processes: of bytes the one farthest from 1, because bytes do not scatter;
    of times the median. A ratio below 1 is turned round."""
    rows = {}
    for name, key in (("oom_peak", "peak_memory_bytes"), ("oom_step", "step_seconds_median")):
        fresh = [sample[key] for sample in samples if not sample["is_after"]]
        ratios = [sample[key] / median(fresh) for sample in samples if sample["is_after"]]
        if not ratios:
            rows[name] = Found(n=0)
            continue
        found = max(ratios, key=lambda ratio: abs(ratio - 1)) if name == "oom_peak" else median(ratios)
        rows[name] = Found(measured=max(found, 1 / found), n=len(ratios))
    return rows


def _oom_config(job: Job) -> TrialConfig:
    values: dict[str, Any] = {"model.name": "resnet18", "batch.micro": 256, "data.subset": 8192, "budget.epochs": 4}
    values |= {"precision.dtype": "bf16", "precision.channels_last": True}
    if job.setting.is_tiny:
        values = {"model.name": "resnet8", "batch.micro": 16, "data.subset": 64, "budget.epochs": 1}
    return build_config({"data.name": "synthetic", "optimizer.lr": 0.02, **values}, "benchmark")


def _run_fresh(config: TrialConfig, job: Job) -> Iterator[Sample]:
    with ProcessExecutor([str(job.setting.device)]) as executor:
        for number in range(job.setting.pick(_NUM_FRESH, 1)):
            (ending,) = _endings(executor, [TrialTask(number=number, config=config, device=job.setting.device.type)])
            yield _describe_ending(ending, is_after=False)


def _run_out(job: Job) -> None:
    # of the device's own memory, not of a share of it
    values = {"model.name": "vit_base", "data.name": "synthetic", "data.subset": 65_536, "batch.micro": 65_536}
    ending = train_trial(build_config(values | {"budget.steps": 1}, "benchmark"), device=str(job.setting.device))
    if ending.outcome != "out_of_memory":
        raise RuntimeError(f"a trial that cannot fit ended as {ending.outcome}: {ending.error}")
    torch.cuda.synchronize()
    time.sleep(0.1)


def _describe_ending(ending: Ending, *, is_after: bool) -> Sample:
    if ending.outcome != "complete":
        raise RuntimeError(f"the trial ended as {ending.outcome}: {ending.error}")
    keys = ("peak_memory_bytes", "step_seconds_median")
    return {"is_after": is_after, **{key: ending.measurements[key] for key in keys}}


# ---------------------------------------------------------------------- many trials at once on one GPU

_TRIAL_SECONDS = 3.0  # of a trial that is alone
_AT_ONCE = (2, 4, 8, 16)


@dataclass(frozen=True)
class _Kind:
    """A training."""

    model: str
    micro: int


_PACKED_KINDS = (_Kind("resnet8", 128), _Kind("vit_tiny", 128), _Kind("resnet18", 512))


def _collect_rates(job: Job) -> Iterator[Sample]:
    """Trials an hour of each kind: alone, then more and more at once, until more at once are slower. A kind that was
    cut short begins anew."""
    device = str(job.setting.device)
    kinds = [kind for kind in _PACKED_KINDS if not any(_is_end(sample, kind) for sample in job.kept)]
    with share_gpu(device) as environment, ProcessExecutor([device]) as executor:
        for kind in kinds:
            task = _calibrated(executor, kind, job)
            rates: dict[int, float] = {}
            for count in (1, *_AT_ONCE[: job.setting.pick(len(_AT_ONCE), 1)]):
                job.require()
                if count > 1:
                    executor.divide(count, environment)
                # one alone is measured by several in turn
                rates[count] = _measure_rate(executor, task, max(count, job.setting.pick(3, 1)))
                executor.divide(1)
                yield {"model": kind.model, "at_once": count, "rate": rates[count], "has_mps": bool(environment)}
                if rates[count] < max(rates.values()):
                    break
            yield {"model": kind.model, "is_end": True}


def _answer_rates(samples: Sequence[Sample]) -> dict[str, Found]:
    """The best rate over that of one at a time."""
    rows = {}
    for kind in _PACKED_KINDS:
        found = [sample for sample in samples if sample["model"] == kind.model and "rate" in sample]
        rates = {sample["at_once"]: sample["rate"] for sample in found}
        if len(rates) < 2:
            rows[f"packed_{kind.model}"] = Found(n=0)
            continue
        best = max(rates, key=lambda count: rates[count])
        note = f"{best} at once, {'MPS' if found[-1]['has_mps'] else 'no MPS'}"
        rows[f"packed_{kind.model}"] = Found(measured=rates[best] / rates[1], note=note, facts={"_measure_rate": rates})
    return rows


def _is_end(sample: Sample, kind: _Kind) -> bool:
    return bool(sample["model"] == kind.model and sample.get("is_end"))


def _collect_packed(job: Job) -> Iterator[Sample]:
    """The same seeds alone and packed."""
    count, device = job.setting.pick(20, 2), str(job.setting.device)
    values = {"model.name": "resnet8", "data.name": "digits", "budget.epochs": job.setting.pick(8, 1)}
    tasks = [
        TrialTask(number=seed, config=build_config({**values, "seed": seed}, "benchmark")) for seed in range(count)
    ]
    with share_gpu(device) as environment, ProcessExecutor([device]) as executor:
        alone = [ending.measurements["val_accuracy"] for ending in _endings(executor, tasks)]
        job.require()
        executor.divide(4, environment)
        packed = [ending.measurements["val_accuracy"] for ending in _endings(executor, tasks)]
    yield {"alone": alone, "packed": packed}


def _answer_packed(samples: Sequence[Sample]) -> dict[str, Found]:
    """How far packed trials differ from the same alone, beside how far seeds do."""
    if not samples:
        return {"pairs_scatter": Found(n=0), "pairs_shift": Found(n=0)}
    alone, packed = samples[-1]["alone"], samples[-1]["packed"]
    differences = [one - other for one, other in zip(packed, alone, strict=True)]
    noise = stdev(alone)
    share = stdev(differences) / (2**0.5 * noise) if noise else float(any(differences))
    shift = Found(measured=fmean(differences), n=len(alone))
    return {"pairs_scatter": Found(measured=share, n=len(alone)), "pairs_shift": shift}


def _measure_rate(executor: ProcessExecutor, task: TrialTask, count: int) -> float:
    """``count`` copies of ``task``, as many at once as there are slots.

    Raises:
        RuntimeError: one did not complete.
    """
    began = time.monotonic()
    _endings(executor, [replace(task, number=number) for number in range(count)])
    return 3600.0 * count / (time.monotonic() - began)


def _endings(executor: ProcessExecutor, tasks: list[TrialTask]) -> list[Ending]:
    left, running, found = list(tasks), set[int](), dict[int, Ending]()
    while left or running:
        while left and len(running) < executor.slots:
            running.add(left[0].number)
            executor.start(left.pop(0))
        for number, said in executor.poll(1.0):
            if isinstance(said, Ending):
                running.discard(number)
                found[number] = said
    failed = [ending for ending in found.values() if ending.outcome != "complete"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(tasks)} trials ended as {failed[0].outcome}: {failed[0].error}")
    return [found[task.number] for task in tasks]


def _calibrated(executor: ProcessExecutor, kind: _Kind, job: Job) -> TrialTask:
    """As many steps as one trial alone takes in ``_TRIAL_SECONDS``."""
    values: dict[str, Any] = {
        "model.name": kind.model,
        "data.name": "synthetic",
        "data.subset": job.setting.pick(8192, 100),
        "batch.micro": job.setting.pick(kind.micro, 8),
        "precision.dtype": "bf16",
        "precision.channels_last": kind.model.startswith("resnet"),
        "budget.steps": job.setting.pick(200, 2),
    }
    task = TrialTask(number=0, config=build_config(values, "benchmark"))
    if job.setting.is_tiny:
        return task
    (ending,) = _endings(executor, [task])
    steps = max(1, round(200 * _TRIAL_SECONDS / ending.measurements["train_seconds"]))
    return replace(task, config=build_config({**values, "budget.steps": steps}, "benchmark"))


# ---------------------------------------------------------------------- CIFAR-10

_NUM_SEEDS = 10
_TARGET, _VIT_TARGET = 0.94, 0.9
# One point of the space of studies/cifar10_fast.toml, chosen beforehand; the study's base holds the rest.
_FAST = {"batch.micro": 512, "optimizer.lr": 0.1, "optimizer.weight_decay": 5e-4, "budget.epochs": 16.0}
# The base of studies/cifar10_vit.toml with what makes training from scratch longer and harder to overfit.
_VIT = {
    "batch.micro": 512,
    "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 0.1,
    "data.augment": "randaugment",
    "precision.compile": True,
    "budget.target_accuracy": _VIT_TARGET,
    "budget.max_epochs": 150.0,
}
_TINY = {"model.name": "resnet8", "batch.micro": 32, "budget.epochs": 1.0, "precision.compile": False}
_TINY_VIT = {"model.name": "vit_micro", "budget.target_accuracy": 0.01, "precision.compile": False}


def _train_vit(job: Job) -> Iterator[Sample]:
    """Every evaluation with the seconds on the wall since the command began, everything before the first step in it.
    A training that was cut short begins anew."""
    values = _VIT | (_TINY_VIT if job.setting.is_tiny else {})
    config = build_config(_study_base("cifar10_vit", job) | values, "benchmark")
    target, began = config.budget.target_accuracy or 0.0, time.monotonic()
    attempt = 1 + max((sample["attempt"] for sample in job.kept), default=0)
    for message in run_trial(TrialTask(number=0, config=config, device=str(job.setting.device))):
        if isinstance(message, Evaluation):
            passed = {"seconds": time.monotonic() - began, "epoch": message.epoch}
            yield {"attempt": attempt, "target": target, "accuracy": message.val_accuracy, **passed}
            job.require()
        if isinstance(message, Ending) and message.outcome not in ("complete", "target_missed"):
            raise RuntimeError(f"the trial ended as {message.outcome}: {message.error}")


def answer_vit(samples: Sequence[Sample]) -> dict[str, Found]:
    """Minutes until the first evaluation of the last attempt that reached the target."""
    if not samples:
        return {"vit_minutes": Found(n=0)}
    last = [sample for sample in samples if sample["attempt"] == samples[-1]["attempt"]]
    reached = [sample["seconds"] / 60 for sample in last if sample["accuracy"] >= sample["target"]]
    best = max(sample["accuracy"] for sample in last)
    note = f"best of {len(last)} evaluations: {100 * best:.1f} %"
    return {"vit_minutes": Found(measured=reached[0] if reached else None, note=note)}


def _train_resnet18(job: Job) -> Iterator[Sample]:
    """A training of each seed that is left, with compile, evaluated on validation and test images."""
    longest = 0.0
    for seed in range(1 + len(job.kept), 1 + job.setting.pick(_NUM_SEEDS, 2)):
        job.require(longest)
        before = job.seconds_left
        yield _train_fast(job, seed)
        longest = max(longest, before - job.seconds_left)


def answer_resnet18(samples: Sequence[Sample]) -> dict[str, Found]:
    """Seconds of training until the first evaluation with 94 %, and accuracies at the end."""
    reached = [sample["seconds_to_target"] for sample in samples if sample["seconds_to_target"] is not None]
    compiling = [sample["compile_seconds"] for sample in samples if sample["compile_seconds"]]
    return {
        "resnet18_seconds": find_median(reached, note=f"reached by {len(reached)} of {len(samples)}"),
        "resnet18_compile": Found(measured=median(compiling) if compiling else None, n=len(compiling)),
        "resnet18_validation": find_mean([sample["val_accuracy"] for sample in samples]),
        "resnet18_test": find_mean([sample["test_accuracy"] for sample in samples]),
    }


def images_folder(archive: Path = ARCHIVE) -> Path:
    """The images of the archive as a folder for ``data.name = "imagefolder"``; unpacked once."""
    place = find_cache_folder() / f"{require_archive(archive).name.partition('.')[0]}-{archive.stat().st_size}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as beside, tarfile.open(archive, "r|*") as files:
            files.extractall(beside, filter="data")
            (only,) = Path(beside).iterdir()
            only.rename(place)
    return place


def _study_base(study: str, job: Job) -> dict[str, Any]:
    shipped = load_study(shipped_studies()[study]).base
    base = {key: value for key, value in shipped.items() if not key.startswith("budget.")}
    if job.setting.is_tiny:
        return base | {"data.name": "synthetic", "data.subset": 64, "precision.dtype": "fp32"}
    return base | {"data.name": "imagefolder", "data.root": str(images_folder())}


def _train_fast(job: Job, seed: int) -> Sample:
    values = _FAST | {"precision.compile": True} | (_TINY if job.setting.is_tiny else {})
    config = build_config(_study_base("cifar10_fast", job) | values | {"seed": seed}, "benchmark")
    if config.precision.compile:
        torch.compiler.reset()  # as in a process of its own
    task = TrialTask(number=0, config=config, device=str(job.setting.device), read_test=True)
    *messages, ending = run_trial(task)
    if not isinstance(ending, Ending) or ending.outcome != "complete":
        raise RuntimeError(f"the trial ended otherwise: {ending}")
    found = {key: ending.measurements[key] for key in ("compile_seconds", "val_accuracy", "test_accuracy")}
    target = 0.0 if job.setting.is_tiny else _TARGET
    return {"seed": seed, "seconds_to_target": _find_seconds(target, messages), **found}


def _find_seconds(target: float, messages: Sequence[Message]) -> float | None:
    """Seconds of training until the first evaluation that reached ``target``."""
    evaluations = [each for each in messages if isinstance(each, Evaluation)]
    return next((each.train_seconds for each in evaluations if each.val_accuracy >= target), None)


# ---------------------------------------------------------------------- a whole study, as its user runs it

_NUM_TRIALS = 60
_SWEEP = "from sweep.cli import main; main()"  # the command, wherever it is installed
_LOOK_SECONDS = 0.5
_SEARCH_SHARE = 0.6  # of the time; the rest is for fresh seeds, without which nothing is named
_REPORT_SECONDS = 40.0  # for the last steps and the report
_READ_SECONDS = 20.0  # for reading what was recorded
_ROWS = ("study_trials", "study_minutes", "study_answer", "study_page", "study_busy", "study_training")


def _run_study(job: Job) -> Iterator[Sample]:
    """``sweep run cifar10_resnet`` with real images, two passes over them a trial, its answer and its page, which is
    copied to ``job.page``. A study that was cut short begins anew."""
    name = "quickstart" if job.setting.is_tiny else "cifar10_resnet"
    with tempfile.TemporaryDirectory() as root:
        command = _make_command(name, root, job)
        print(" ".join(command), flush=True)
        began = time.monotonic()
        with _watched(str(job.setting.device)) as looks:
            code = _wait_for(command, job)
        seconds = time.monotonic() - began
        folder = Path(root) / name
        if not (folder / "study.sqlite").is_file():
            raise RuntimeError(f"sweep run ended with exit code {code} and no records")
        page = folder / "report.html"
        if page.is_file() and job.page:
            shutil.copy(page, job.page)
        found = {"study": name, "seconds": seconds, "exit_code": code, "looks": looks}
        yield {**found, **_read_study(folder), "page_bytes": page.stat().st_size if page.is_file() else 0}


def _answer_study(samples: Sequence[Sample]) -> dict[str, Found]:
    """What the last study came to."""
    if not samples:
        return {name: Found(n=0) for name in _ROWS}
    last = samples[-1]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in last["outcomes"].items())
    note = f"{last['study']}, exit code {last['exit_code']}; {outcomes}"
    uses = [use for use, found in last["_answer_study"]["uses"].items() if found.get("config")]
    looks, training = last["looks"], last["training_utilization"]
    return {
        "study_trials": Found(measured=last["num_search"], note=note),
        "study_minutes": Found(measured=last["seconds"] / 60, note=f"{last['trial_seconds'] / 60:.3g} in trials"),
        "study_answer": Found(measured=len(uses), note=", ".join(uses)),
        "study_page": Found(measured=int(last["page_bytes"] > 0), note=f"{last['page_bytes'] / 1e6:.1f} MB"),
        "study_busy": Found(measured=mean(looks) if looks else None, n=len(looks)),
        "study_training": Found(measured=median(training) if training else None, n=len(training)),
    }


def _wait_for(command: list[str], job: Job) -> int:
    """The exit code; the command is interrupted, as by Ctrl-C, when the time of the piece is over."""
    with subprocess.Popen(command) as process:
        try:
            process.wait(timeout=max(1.0, job.seconds_left - _READ_SECONDS))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
    return process.returncode


def _read_study(folder: Path) -> Sample:
    trials = load_frames(folder).trials
    return {
        "outcomes": {str(outcome): int(count) for outcome, count in trials["outcome"].value_counts().items()},
        "num_search": int((trials["phase"] == "search").sum()),
        "trial_seconds": float(trials["total_seconds"].sum()),
        "training_utilization": [float(value) for value in trials["gpu_utilization"].dropna()],
        "_answer_study": _as_plain(as_document(recommend(folder)), folder.parent),
    }


def _make_command(name: str, root: str, job: Job) -> list[str]:
    timeout = max(30, int(job.seconds_left - _REPORT_SECONDS))
    values: dict[str, object] = {"budget.epochs": 2, "search_timeout": f"{int(_SEARCH_SHARE * timeout)}s"}
    if job.setting.is_tiny:
        values |= {"data.subset": 100, "confirm.share": 100, "confirm.seeds": 3}
    else:
        values |= {"data.name": "imagefolder", "data.root": images_folder(), "confirm.share": 1.0}
    command = [*bind_to_this_process(_SWEEP), "run", name, "--root", root, "--json", "--timeout", f"{timeout}s"]
    command += ["--on", str(job.setting.device), "--trials", str(job.setting.pick(_NUM_TRIALS, 3))]
    return [*command, *(part for key, value in values.items() for part in ("--set", f"{key}={value}"))]


@contextmanager
def _watched(device: str) -> Iterator[list[float]]:
    """Shares of the time in which the device did anything; none where it does not say."""
    looks: list[float] = []
    ended = threading.Event()

    def look_on(read: Callable[[], Any]) -> None:
        while not ended.wait(_LOOK_SECONDS):
            value = read().utilization
            if value is not None:
                looks.append(value)

    source = make_source(list_nvml_names(device)[0])
    watcher = threading.Thread(target=look_on, args=(source.read,), daemon=True)
    watcher.start()
    try:
        yield looks
    finally:
        ended.set()
        watcher.join(timeout=5.0)
        source.close()


def _as_plain(document: dict[str, Any], root: Path) -> Any:
    # numbers that JSON does not know become null; the temporary folder is named as a user's would be
    text = json.dumps(document, default=str).replace(str(root), "runs")
    return json.loads(text, parse_constant=lambda _name: None)


MEASURES = SPEED_MEASURES | {
    "tests": Measure(_run_tests, count_failed),
    "recipe": Measure(collect_trainings, answer_recipe),
    "packed": Measure(_collect_rates, _answer_rates),
    "study": Measure(_run_study, _answer_study),
    "vit": Measure(_train_vit, answer_vit),
    "out_of_memory": Measure(_run_after_out_of_memory, _compare_with_fresh),
    "pairs": Measure(_collect_packed, _answer_packed),
    "resnet18": Measure(_train_resnet18, answer_resnet18),
}
