"""What all figures and texts of one report rest on, computed once from the frames: the answer, its trials and
configurations with their hover texts and commands, and where they are from."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.labels import OUTCOME_NAMES, format_estimate, format_metric, format_setting, metric_label
from sweep.analysis.answer import Answer, Limits
from sweep.analysis.candidates import Candidates, select_candidates
from sweep.analysis.comparable import (
    USUAL_OBJECTIVES,
    find_common_data,
    find_study_name,
    name_scripts,
    objective_signs,
    objective_table,
    select_comparable,
    summarize_configurations,
)
from sweep.analysis.costs import SOURCE_NAMES, apply_times
from sweep.analysis.findings import Finding, evaluate_claims
from sweep.analysis.recommendation import make_answer
from sweep.analysis.statistics import (
    Interval,
    Values,
    configuration_groups,
    front_rank,
    non_dominated,
    plain_value,
    read_numbers,
    read_text,
    varying_keys,
)
from sweep.config.commands import train_command
from sweep.config.errors import show_name
from sweep.config.metrics import IMAGES, Metric, Quality, find_metric, format_count
from sweep.config.study import FEWEST_SEEDS
from sweep.config.trial import default_settings, key_label
from sweep.records.frames import Frames
from sweep.records.quality import name_flags
from sweep.records.records import CONFIG_COLUMNS

_MAX_NAMED = 4
_FRESH = "(seeds that the search did not use)"
# key of a budget, and how it reads after its value
_BUDGETS = {
    "epochs": "epochs", "steps": "steps", "samples": "samples", "seconds": "seconds",
    "target": "as the target",
}  # fmt: skip
# More than this many trials make a page slow; the others are drawn as a density and counted.
MAX_DETAILED = 2_000
# Of these at most so many that did not complete, and so many confirming ones.
_MAX_UNFINISHED = 400
_MAX_CONFIRMING = 400
_MAX_ERROR = 200
# The word beside a number ("auto"), which a frame holds as a missing cell.
_WORDS = {column.path: column.null_value for column in CONFIG_COLUMNS if isinstance(column.null_value, str)}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """``frames`` prepared for the figures.

    ``trials`` has "" as the outcome of a trial that runs, the times to use (:func:`sweep.analysis.costs.apply_times`),
    and two columns more: ``family``, the number of the first trial of its configuration, and ``detailed``, true for
    those that the report shows one by one. ``search`` are the complete search trials with ``on_search_front`` and
    ``rank``. ``configurations`` have the estimates of ``answer``, so that all figures and tables show the same;
    ``evaluations`` have the times to use too. ``swept`` are the keys that vary. ``candidates`` is what the answer rests
    on, None without a complete trial.
    """

    frames: Frames
    name: str
    objectives: tuple[str, ...]
    swept: tuple[str, ...]
    trials: pd.DataFrame
    search: pd.DataFrame
    configurations: pd.DataFrame
    evaluations: pd.DataFrame
    candidates: Candidates | None
    answer: Answer

    def metric(self, name: str) -> Metric:
        """The metric of a column of these records."""
        return find_metric(name, self.answer.quality)

    @cached_property
    def detailed(self) -> pd.DataFrame:
        """The trials that are shown one by one."""
        return self.trials[self.trials["detailed"].to_numpy(dtype=bool)]

    @cached_property
    def unfinished(self) -> pd.DataFrame:
        """The detailed trials that ended in another way than complete."""
        return self.detailed[(~self.detailed["outcome"].isin(["", "complete"])).to_numpy(dtype=bool)]

    @cached_property
    def detailed_evaluations(self) -> pd.DataFrame:
        """The evaluations of the detailed trials, in the order of trials and steps."""
        rows = np.isin(read_numbers(self.evaluations, "number"), read_numbers(self.detailed, "number"))
        return self.evaluations[rows].sort_values(["number", "step"], kind="stable")

    @cached_property
    def claims(self) -> list[Finding]:
        """Common claims, tested on the records."""
        return evaluate_claims(self.frames)

    @cached_property
    def texts(self) -> dict[int, str]:
        """The hover text of each detailed trial, by its number; the same in every figure."""
        return _describe_trials(self.detailed, self.swept, self.objectives, self.answer.quality)

    @cached_property
    def confirmed(self) -> pd.DataFrame:
        """The configurations with a complete confirming trial."""
        return self.configurations[self.configurations["confirmed"].to_numpy(dtype=bool)]

    @cached_property
    def confirmed_texts(self) -> dict[int, str]:
        """The hover text of each confirmed configuration, by its number."""
        return {
            int(row["number"]): _describe_configuration(row, self.swept, self.objectives, self.answer.quality)
            for _, row in self.confirmed.iterrows()
        }

    @cached_property
    def provenance(self) -> tuple[str, ...]:
        """What was run: data, models, budget, trials, device, date and commit. The parts say what is not on record;
        without a trial they leave it out."""
        return _describe_provenance(self)

    @property
    def num_confirmed(self) -> int:
        """Configurations with a complete confirming trial."""
        return len(self.confirmed)

    def count_outcomes(self) -> dict[str, int]:
        """The number of trials by outcome, the most frequent first; "" are those that run."""
        counts = self.trials["outcome"].value_counts()
        return {str(outcome): int(count) for outcome, count in sorted(counts.items(), key=lambda i: (-i[1], i[0]))}


def gather_evidence(frames: Frames) -> Evidence:
    """The evidence in ``frames``; works with no trial at all, and while a study runs. Raises ``InputError``: trials of
    two studies are known to have read different images."""
    find_common_data(frames)
    # copied, so that columns of one type lie together: pandas warns where columns are added to over 100 separate ones
    trials = name_scripts(frames).sort_values("number", kind="stable").reset_index(drop=True).copy()
    trials = apply_times(trials.assign(outcome=pd.Series(read_text(trials, "outcome"), dtype="str")), frames.probes)
    spec = frames.spec
    usual = tuple(name for name in USUAL_OBJECTIVES if np.isfinite(read_numbers(trials, name)).any())
    objectives = spec.objectives if spec else usual or USUAL_OBJECTIVES
    quality = spec.quality if spec else IMAGES
    search = _search(trials, objectives, quality)
    first = trials["number"].groupby(configuration_groups(trials)).transform("min")
    trials = trials.assign(family=first, detailed=_detailed(trials, search))
    comparable = select_comparable(frames)
    candidates = select_candidates(comparable, Limits())
    answer = make_answer(frames, comparable, candidates, Limits())
    return Evidence(
        frames=frames,
        name=find_study_name(frames),
        objectives=objectives,
        swept=tuple(key for key in spec.space if key != "seed") if spec else varying_keys(trials),
        trials=trials,
        search=search.assign(detailed=trials["detailed"].to_numpy(dtype=bool)[search["row"]]).drop(columns="row"),
        configurations=_add_estimates(
            summarize_configurations(trials, objectives, quality), trials, answer, objectives
        ),
        evaluations=_apply_times(frames.evaluations, trials),
        candidates=candidates,
        answer=answer,
    )


def keep_finite(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The finite ones."""
    return np.asarray(values[np.isfinite(values)])


def _search(trials: pd.DataFrame, objectives: tuple[str, ...], quality: Quality) -> pd.DataFrame:
    rows = np.flatnonzero((trials["outcome"] == "complete") & (trials["phase"] == "search"))
    search = trials.iloc[rows].reset_index(drop=True)
    rank = front_rank(objective_table(search, objectives), objective_signs(objectives, quality))
    return search.assign(on_search_front=rank == 0, rank=rank, row=rows)


def _detailed(trials: pd.DataFrame, search: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The latest that did not complete, the latest confirming ones, and of the search the front and its neighbors for
    one half and the latest for the other; shape ``[len(trials)]``."""
    is_confirming = (trials["phase"] == "confirm").to_numpy(dtype=bool)
    is_complete = (trials["outcome"] == "complete").to_numpy(dtype=bool)
    detailed = np.zeros(len(trials), dtype=np.bool_)
    detailed[np.flatnonzero(~is_complete)[-_MAX_UNFINISHED:]] = True
    detailed[np.flatnonzero(is_complete & is_confirming)[-_MAX_CONFIRMING:]] = True
    room = MAX_DETAILED - int(detailed.sum())
    rank, rows = search["rank"].to_numpy(), search["row"].to_numpy()
    by_rank = np.argsort(np.where(rank < 0, rank.max(initial=0) + 1, rank), kind="stable")
    best = by_rank[: room if len(rank) <= room else room // 2]
    others = np.setdiff1d(np.arange(len(rank)), best)
    latest = others[len(others) - min(len(others), room - len(best)) :]
    detailed[rows[np.concatenate([best, latest])]] = True
    return detailed


def _apply_times(evaluations: pd.DataFrame | None, trials: pd.DataFrame) -> pd.DataFrame:
    """``evaluations`` with their training time in proportion to the one to use of their trial."""
    if evaluations is None or not len(evaluations):
        return pd.DataFrame(columns=["number"]) if evaluations is None else evaluations
    factors = pd.Series(read_numbers(trials, "train_seconds"), index=trials["number"]).div(
        read_numbers(trials, "clock_seconds")
    )
    own = factors.reindex(evaluations["number"]).fillna(1.0).to_numpy()
    return evaluations.assign(train_seconds=read_numbers(evaluations, "train_seconds") * own)


def _add_estimates(
    frame: pd.DataFrame, trials: pd.DataFrame, answer: Answer, objectives: tuple[str, ...]
) -> pd.DataFrame:
    """The configurations ``frame`` with the estimates of ``answer`` in ``<metric>``, ``<metric>_low`` and
    ``<metric>_high`` wherever there is one, and two columns more: ``<metric>_n``, the number of trials behind it (NaN
    for a value as it was measured), and ``p_front``, the probability of being on the Pareto front. ``on_front``, among
    confirmed configurations, follows the estimates. ``trials`` have the column ``family``.
    """
    families = dict(zip(trials["number"].tolist(), trials["family"].tolist(), strict=True))
    rows = {families[number]: row for row, number in enumerate(frame["number"].tolist())}
    columns: dict[str, Values] = {"p_front": np.full(len(frame), np.nan)}
    confirmed = frame["confirmed"].to_numpy(dtype=bool)
    for item in answer.configurations:
        row = rows.get(families[item.number])
        if row is None:
            continue
        if len(answer.configurations) > 1:  # one alone has no rival
            columns["p_front"][row] = item.front_probability
        ends = ("", "_low", "_high", "_n")
        found = {f"{name}{end}": value[i] for name, value in item.values.items() for i, end in enumerate(ends)}
        if confirmed[row]:  # what was measured has the interval of the answer, so that there is one
            found |= {f"{name}{ends[i]}": value[i] for name, value in item.measured.items() for i in (1, 2)}
        for column, number in found.items():
            if column not in columns:
                columns[column] = read_numbers(frame, column).copy()
            columns[column][row] = number
    estimated = frame.assign(**columns)
    if not confirmed.any():
        return estimated
    table = np.where(confirmed[:, None], objective_table(estimated, objectives), np.nan)
    return estimated.assign(on_front=non_dominated(table, objective_signs(objectives, answer.quality)))


# Rows of frames as texts.


def read_measurement(row: pd.Series, name: str) -> float:
    """A metric of one row, NaN where it is missing."""
    value = plain_value(row.get(name))
    return float(value) if isinstance(value, int | float) else math.nan


def read_interval(row: pd.Series, name: str) -> Interval:
    """The estimate of a metric of a configuration; ``n`` is 0 where there is none."""
    value, low, high, n = (read_measurement(row, f"{name}{end}") for end in ("", "_low", "_high", "_n"))
    return Interval(value, low, high, int(n) if math.isfinite(n) else 0)


def describe_settings(row: pd.Series, swept: Sequence[str]) -> str:
    """The swept settings of a trial or configuration in one line."""
    parts = [f"{key_label(key)} {format_setting(plain_value(row.get(f'config.{key}')))}" for key in swept]
    return ", ".join(parts) or f"trial {int(row['number'])}"


def format_column(frame: pd.DataFrame, key: str) -> list[str]:
    """A key's value of every row as a reader sees it."""
    return [format_setting(plain_value(value)) for value in read_cells(frame, f"config.{key}")]


def read_cells(frame: pd.DataFrame, name: str) -> list[object]:
    """A column as plain Python values; None where there is no such column."""
    return frame[name].tolist() if name in frame.columns else [None] * len(frame)


def _describe_trials(
    frame: pd.DataFrame, swept: Sequence[str], objectives: Sequence[str], quality: Quality
) -> dict[int, str]:
    """The hover text of each trial, by its number; column by column, because rows of a frame are slow."""
    heads = zip(frame["family"], frame["number"], frame["seed"], strict=True)
    lines = [[f"C{family:.0f}, trial {number:.0f}, seed {seed:.0f}" for family, number, seed in heads]]
    settings = [[f"{key_label(key)} {value}" for value in format_column(frame, key)] for key in swept]
    if settings:
        lines.append([", ".join(parts) for parts in zip(*settings, strict=True)])
    for name in objectives:
        values = (format_metric(name, value, quality) for value in read_numbers(frame, name))
        lines.append([f"{metric_label(name, quality)}: {value}" for value in values])
    lines.append([f"Bottleneck: {cause}" if cause else "" for cause in read_text(frame, "bottleneck")])
    times = (read_text(frame, "quality_flags"), read_text(frame, "time_source"), read_numbers(frame, "clock_seconds"))
    lines.append([_describe_quality(*row) for row in zip(*times, strict=True)])
    endings = []
    for outcome, error in zip(frame["outcome"], read_text(frame, "error"), strict=True):
        words = [OUTCOME_NAMES.get(outcome, outcome), str(error)[:_MAX_ERROR]]
        endings.append("" if outcome == "complete" else "\n".join(filter(None, words)))
    texts = zip(*lines, endings, strict=True)
    return {int(number): "\n".join(filter(None, parts)) for number, parts in zip(frame["number"], texts, strict=True)}


def _describe_quality(flags: str, source: str, clock_seconds: float) -> str:
    if not flags:
        return ""
    warning = f"Quality warnings: {name_flags(flags)}"
    if source not in SOURCE_NAMES:
        return warning
    measured = format_metric("train_seconds", clock_seconds)
    return f"{warning}\nThe time shown is by {SOURCE_NAMES[source]}; the measured one was {measured}"


def _describe_configuration(row: pd.Series, swept: Sequence[str], objectives: Sequence[str], quality: Quality) -> str:
    """The hover text of a confirmed configuration."""
    values = [
        f"{metric_label(name, quality)}: {value}{f' ({note})' if note else ''}"
        for name in objectives
        for value, note in [describe_value(row, name, quality)]
    ]
    head = f"C{row['number']}, {format_count(row['num_seeds'], 'fresh seed')}"
    return "\n".join([head, describe_settings(row, swept), *values])


def describe_value(row: pd.Series, name: str, quality: Quality) -> tuple[str, str]:
    """A metric of a configuration, and its interval or that it is no estimate; ("–", "") where it is missing."""
    value = read_interval(row, name)
    if not math.isfinite(value.median):
        return format_metric(name, value.median, quality), ""
    if value.n:
        return format_estimate(name, *value, quality)
    num_seeds = int(row["num_seeds"])
    shown, interval = format_estimate(name, *value[:3], num_seeds if row["confirmed"] else 0, quality)
    median = "median of " if num_seeds > 1 else ""
    seeds = f"{median}{format_count(num_seeds, 'fresh seed')}" if row["confirmed"] else "one seed"
    return shown, ", ".join(filter(None, (interval, f"{seeds}, as measured")))


def train_commands(frame: pd.DataFrame, frames: Frames) -> list[str]:
    """:func:`train_command` for every row of a frame of trials or configurations, the latter with their first seed.
    Where another program wrote the records, no command repeats a run: a comment says which run the row is from."""
    if frames.source is not None:
        file, word = frames.source.file, "run" if frames.source.map_file else "trial"
        numbers = [first for first, *_ in frame["numbers"]] if "numbers" in frame.columns else frame["number"].tolist()
        return [f"# {word} {int(number)} of {file}" for number in numbers]
    seeds = frame["seed"] if "seed" in frame.columns else [numbers[0] for numbers in frame["seeds"]]
    settings = {}
    for key, default in default_settings().items():
        values = _worded(key, set(read_cells(frame, f"config.{key}")))
        if any(value is not None and value != default for value in values):  # the default needs no words
            settings[key] = read_settings(frame, key)
    rows = zip(*settings.values(), strict=True) if settings else [()] * len(frame)
    commands = frames.find_commands(find_study_name(frames))
    absent = commands.state_absent(commands.plugin)
    return [
        absent + train_command(dict(zip(settings, row, strict=True)), int(seed), frames.plugin)
        for row, seed in zip(rows, seeds, strict=True)
    ]


def read_settings(frame: pd.DataFrame, key: str) -> list[object]:
    """A key's value in every row, with the word that stands for a missing cell."""
    return _worded(key, read_cells(frame, f"config.{key}"))


def _worded(key: str, values: Iterable[object]) -> list[object]:
    word = _WORDS.get(key)
    return [word if value is None else value for value in map(plain_value, values)]


# What was run.


def _describe_provenance(evidence: Evidence) -> tuple[str, ...]:
    trials, frames, source = evidence.trials, evidence.frames, evidence.frames.source
    is_script = bool(frames.spec and frames.spec.script)  # whose data and optimizer are its own affair

    def state(name: str, values: Iterable[str]) -> str:
        named = [show_name(value) for value in sorted(set(values) - {""})]
        return _join(named) if named or is_script or not len(trials) else f"{name} not on record"

    data = frames.data
    if data is not None and data.num_train is not None and data.num_val is not None:
        images = f"{show_name(data.name)}: {data.num_train:,} training and {data.num_val:,} validation images"
    else:
        recorded = state(key_label("data.name"), _list_distinct(trials, "config.data.name"))
        name = show_name(data.name) if data else recorded or ("" if is_script else "data set not on record")
        num_images, sample = evidence.answer.validation.num_images, evidence.answer.quality.sample
        images = f"{name}: {num_images:,} validation {sample}" if num_images else f"{name} ({sample} not on record)"
        images = images if name else images.removeprefix(": ").strip(" ()")
    started = pd.to_datetime(frames.attempts["started_at"], utc=True).dropna()
    dates = [f"{moment:%Y-%m-%d}" for moment in (started.min(), started.max())] if len(started) else []
    commits = state("commit", (commit[:7] for commit in read_text(frames.environments, "project_commit")))
    parts = (
        f"records from elsewhere ({source.program}, SHA-256 {source.digest[:12]}...)" if source else "",
        images,
        state(key_label("model.name"), _list_distinct(trials, "config.model.name")),
        _describe_budget(trials),
        state(key_label("optimizer.name"), _list_distinct(trials, "config.optimizer.name")),
        describe_basis(evidence),
        state("device", read_text(trials, "device")),
        " to ".join(dict.fromkeys(dates)) or state("date", ()),
        commits if not commits or commits.startswith("commit ") else f"commit {commits}",
    )
    return tuple(filter(None, parts))


def describe_basis(evidence: Evidence) -> str:
    """What the answer rests on, in one clause."""
    done, frame = len(evidence.search), evidence.configurations
    if not len(frame):
        return "no trial has completed"
    begin = f"{format_count(done, 'search trial')} completed with one seed{'' if done == 1 else ' each'}"
    if not evidence.num_confirmed:
        return f"{begin}; none trained again with fresh seeds {_FRESH}; a recommendation requires {FEWEST_SEEDS}"
    counts = sorted(set(evidence.confirmed["num_seeds"].tolist()))
    how_many = format_count(evidence.num_confirmed, "configuration")
    is_chosen = done and (evidence.trials["phase"] == "confirm").any()  # by a run of the search
    word = "fresh seed" if is_chosen else "seed"
    seeds = format_count(counts[0], word) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} {word}s"
    if not is_chosen:
        return f"{how_many} trained with {seeds} each, none chosen by its result"
    return f"{begin}; {how_many} trained again with {seeds} {_FRESH}"


def _describe_budget(trials: pd.DataFrame) -> str:
    given = {name: _list_distinct(trials, f"config.budget.{name}") for name in _BUDGETS}
    parts = [f"{_join(values)} {_BUDGETS[name]}" for name, values in given.items() if values]
    if {*_list_distinct(trials, "config.rules.epochs")} - {"none"}:
        parts = [f"{part} at the reference batch, by rule at others" for part in parts]
    return " or ".join("1 epoch" if part == "1 epochs" else part for part in parts)


def _list_distinct(trials: pd.DataFrame, column: str) -> list[str]:
    if column not in trials.columns:
        return []
    values = (plain_value(value) for value in trials[column].dropna().unique().tolist())
    return sorted(format_setting(value) for value in values if value not in (None, ""))


def _join(values: list[str]) -> str:
    more = len(values) - _MAX_NAMED
    return ", ".join(values[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
