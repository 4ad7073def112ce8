"""The validation images that the accuracies of a study were measured on, and the error that their choice leaves."""

from functools import cached_property
from typing import final

import numpy as np
import pandas as pd

from sweep.analysis.statistics.column_reading import most_common, read_numbers, read_text
from sweep.analysis.statistics.grouping import Grouping, Numbers
from sweep.analysis.statistics.image_sampling import estimate_image_shares
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.records.correct_images import Correct
from sweep.records.data_summary import DataSummary
from sweep.records.frames.study_frames import Frames

_NUM_ASKED = 20  # configurations whose records are read for the number of images where the study's has none


@final
class ValidationImages:
    """The images of the one split on which all trials ``done`` were evaluated. ``data`` is what is recorded of it."""

    def __init__(self, frames: Frames, done: pd.DataFrame, grouping: Grouping, data: DataSummary | None) -> None:
        self._frames, self._done, self._grouping = frames, done, grouping
        name = most_common(read_text(done, "config.data.name"))[0] if len(done) else ""
        is_same = data is not None and (not name or data.name == name)
        self._data = data if is_same else None
        self._read: dict[int, Correct | None] = {}  # by row of ``done``
        self._covariances: dict[bytes, Values] = {}  # by configurations, which several readers ask for

    @cached_property
    def num_images(self) -> int | None:
        """The number of validation images; None where it is not known."""
        if self._data and self._data.num_val:
            return self._data.num_val
        read = self._load(self._basis(np.arange(min(_NUM_ASKED, self._grouping.size))))
        return next((len(correct) for correct in read.values() if correct is not None), None)

    @property
    def chance(self) -> float | None:
        """The accuracy of always naming the most frequent class; None where the images by class are not known."""
        counts = [splits.get("val", 0) for splits in self._data.classes.values()] if self._data else []
        return max(counts) / sum(counts) if sum(counts) else None

    @property
    def num_test(self) -> int | None:
        """The number of test images; None where it is not known."""
        return self._data.num_test or None if self._data else None

    def are_known(self, rows: Numbers) -> Mask:
        """Of which configurations ``rows`` (shape ``[k]``) it is on record which images they got right."""
        read = self._usable(rows)
        known = np.unique(self._grouping.members[np.array(list(read), dtype=np.int64)])
        return np.isin(rows, known)

    def covariance(self, rows: Numbers) -> Values:
        """Covariance, between the configurations ``rows`` (shape ``[k]``, distinct), of the error that these images
        leave in the accuracy on new ones, on the scale of angles asin(sqrt(accuracy)); shape ``[k, k]``.

        All 0 where the number of images is not known. A configuration of which it is not on record which images it got
        right has the binomial error 1 / (4 n), independent of the others': differences seem less sure than they are.
        """
        if self.num_images is None:
            return np.zeros((len(rows), len(rows)))
        if (key := rows.tobytes()) not in self._covariances:
            self._covariances[key] = self._estimate(rows) / (4.0 * self.num_images)
        return self._covariances[key]

    def _estimate(self, rows: Numbers) -> Values:
        shares = np.eye(len(rows))
        read = self._usable(rows)
        if read:
            trials = np.array(list(read), dtype=np.int64)
            known, members = np.unique(self._grouping.members[trials], return_inverse=True)
            seeds = read_numbers(self._done, "seed")[trials].astype(np.int64)
            order = np.argsort(rows)
            places = order[np.searchsorted(rows, known, sorter=order)]
            shares[np.ix_(places, places)] = estimate_image_shares(np.stack(list(read.values())), members, seeds)
        return shares

    def _basis(self, rows: Numbers) -> Numbers:
        return np.flatnonzero(self._grouping.is_basis & np.isin(self._grouping.members, rows))

    def _usable(self, rows: Numbers) -> dict[int, Correct]:
        read = self._load(self._basis(rows))
        return {
            trial: correct for trial, correct in read.items() if correct is not None and len(correct) == self.num_images
        }

    def _load(self, trials: Numbers) -> dict[int, Correct | None]:
        # only what was not read before
        find = self._frames.find_correct
        missing = np.array([trial for trial in trials.tolist() if trial not in self._read], dtype=np.int64)
        studies, numbers = read_text(self._done, "study")[missing], read_numbers(self._done, "number")[missing]
        for study in sorted(set(studies.tolist())):
            of_study = {int(numbers[place]): int(missing[place]) for place in np.flatnonzero(studies == study)}
            found = find(study, list(of_study)) if find else {}
            self._read |= {row: found.get(number) for number, row in of_study.items()}
        return {trial: self._read[trial] for trial in trials.tolist()}
