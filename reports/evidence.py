"""What all figures and texts of one report rest on, computed once from the frames."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.describe import describe_configuration, describe_trials
from reports.estimated_configurations import add_estimates
from sweep.analysis.answer import Answer, Limits
from sweep.analysis.candidates import Candidates, select_candidates
from sweep.analysis.comparable import (
    USUAL_OBJECTIVES,
    find_common_data,
    find_study_name,
    objective_signs,
    objective_table,
    select_comparable,
    summarize_configurations,
)
from sweep.analysis.costs import apply_times
from sweep.analysis.findings import Finding, evaluate_claims
from sweep.analysis.recommendation import make_answer
from sweep.analysis.statistics import configuration_groups, front_rank, read_numbers, read_text, varying_keys
from sweep.records.frames.study_frames import Frames

# More than this many trials make a page slow; the others are drawn as a density and counted.
MAX_DETAILED = 2_000
# Of these at most so many that did not complete, and so many confirming ones.
MAX_UNFINISHED = 400
MAX_CONFIRMING = 400


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """``frames`` prepared for the figures: ``trials`` has "" as the outcome of a trial that runs, the times to use
    (:func:`sweep.analysis.costs.apply_times`), and two columns more: ``family``, the number of the first trial of its
    configuration, and ``detailed``, true for those that the report shows one by one. ``search`` are the complete search
    trials with ``on_search_front`` and ``rank``; ``configurations`` as
    :func:`reports.estimated_configurations.add_estimates` makes them: with the estimates of ``answer``, so that all
    figures and tables show the same; ``swept`` the keys that vary; ``candidates`` what the answer rests on, None
    without a complete trial.
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

    @cached_property
    def detailed(self) -> pd.DataFrame:
        """The trials that are shown one by one."""
        return self.trials[self.trials["detailed"].to_numpy(dtype=bool)]

    @cached_property
    def unfinished(self) -> pd.DataFrame:
        """Of these the ones that ended in another way than complete."""
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
        return describe_trials(self.detailed, self.swept, self.objectives)

    @cached_property
    def confirmed(self) -> pd.DataFrame:
        """The configurations with a complete confirming trial."""
        return self.configurations[self.configurations["confirmed"].to_numpy(dtype=bool)]

    @cached_property
    def confirmed_texts(self) -> dict[int, str]:
        """The hover text of each confirmed configuration, by its number."""
        return {
            int(row["number"]): describe_configuration(row, self.swept, self.objectives)
            for _, row in self.confirmed.iterrows()
        }

    @property
    def num_confirmed(self) -> int:
        """Configurations with a complete confirming trial."""
        return len(self.confirmed)

    def count_outcomes(self) -> dict[str, int]:
        """The number of trials by outcome, the most frequent first; "" are those that run."""
        counts = self.trials["outcome"].value_counts()
        return {str(outcome): int(count) for outcome, count in sorted(counts.items(), key=lambda i: (-i[1], i[0]))}


def gather_evidence(frames: Frames) -> Evidence:
    """The evidence in ``frames``; works with no trial at all, and while a study runs.

    Raises:
        InputError: trials of two studies are known to have read different images.
    """
    find_common_data(frames)
    # copied, so that columns of one type lie together: pandas warns where columns are added to over 100 separate ones
    trials = frames.trials.sort_values("number", kind="stable").reset_index(drop=True).copy()
    trials = apply_times(trials.assign(outcome=pd.Series(read_text(trials, "outcome"), dtype="str")), frames.probes)
    spec = frames.spec
    objectives = spec.objectives if spec else _usual_objectives(trials)
    search = _search(trials, objectives)
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
        configurations=add_estimates(
            summarize_configurations(frames.trials, objectives, frames.probes), trials, answer, objectives
        ),
        evaluations=frames.evaluations if frames.evaluations is not None else pd.DataFrame(columns=["number"]),
        candidates=candidates,
        answer=answer,
    )


def keep_finite(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The finite ones."""
    return np.asarray(values[np.isfinite(values)])


def _usual_objectives(trials: pd.DataFrame) -> tuple[str, ...]:
    measured = tuple(name for name in USUAL_OBJECTIVES if len(keep_finite(read_numbers(trials, name))))
    return measured or USUAL_OBJECTIVES


def _search(trials: pd.DataFrame, objectives: tuple[str, ...]) -> pd.DataFrame:
    rows = np.flatnonzero((trials["outcome"] == "complete") & (trials["phase"] == "search"))
    chosen = trials.iloc[rows].reset_index(drop=True)
    rank = front_rank(objective_table(chosen, objectives), objective_signs(objectives))
    return chosen.assign(on_search_front=rank == 0, rank=rank, row=rows)


def _detailed(trials: pd.DataFrame, search: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The latest that did not complete, the latest confirming ones, and of the search the front and its neighbors for
    one half and the latest for the other; shape ``[len(trials)]``."""
    outcome, confirm = trials["outcome"], (trials["phase"] == "confirm").to_numpy(dtype=bool)
    complete = (outcome == "complete").to_numpy(dtype=bool)
    chosen = np.zeros(len(trials), dtype=np.bool_)
    chosen[np.flatnonzero(~complete)[-MAX_UNFINISHED:]] = True
    chosen[np.flatnonzero(complete & confirm)[-MAX_CONFIRMING:]] = True
    room = MAX_DETAILED - int(chosen.sum())
    rank = search["rank"].to_numpy()
    nearest = np.argsort(np.where(rank < 0, rank.max(initial=0) + 1, rank), kind="stable")
    near = nearest[: room if len(rank) <= room else room // 2]
    rest = np.setdiff1d(np.arange(len(rank)), near)
    rows = search["row"].to_numpy()
    chosen[rows[near]] = True
    chosen[rows[rest[len(rest) - min(len(rest), room - len(near)) :]]] = True
    return chosen
