"""Looks at the data set of a study. A module of its own, because no trial depends on what a study is."""

from collections.abc import Callable

from sweep.config.study import StudySpec
from sweep.config.tables.datasets import DATASETS
from sweep.config.trial_config import TrialConfig
from sweep.records.data_summary import DataSummary
from sweep.records.messages import ExpectedData
from sweep.training.data.data_checks import check_data
from sweep.training.data.folders.inspection import OnProgress


def check_study_data(
    spec: StudySpec, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """What the data set of the study holds; raises ``InputError`` where it is missing or cannot be used."""
    found = [
        check_data(config, on_progress, may_download=may_download)
        for config in {each.data: each for each in spec.corners.of("data")}.values()
    ]
    return found[0]  # the images are the same for all configurations of a study


def expect_data(spec: StudySpec, data: DataSummary) -> Callable[[TrialConfig], ExpectedData | None]:
    """What a trial of ``spec`` must read, by its configuration, where ``data`` was counted for the study."""
    entry = DATASETS[data.name]
    known = make_expected_data(data)
    looked_at = spec.corners.first.data
    # a load function may make other pixels for another section; a digest of the files or of the entry does not
    is_of_pixels = entry.summarize is None and entry.digest is None
    return lambda config: None if is_of_pixels and config.data != looked_at else known


def make_expected_data(data: DataSummary) -> ExpectedData | None:
    """What a trial must read of the set that was counted as ``data``; None where that is not known."""
    return ExpectedData(data.digest, sum(data.sizes.values())) if data.digest else None
