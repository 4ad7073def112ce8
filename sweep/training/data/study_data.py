"""Looks at the data set of a study. A module of its own, because no trial depends on what a study is."""

from sweep.config.study import StudySpec
from sweep.records.data_summary import DataSummary
from sweep.training.data.data_checks import check_data
from sweep.training.data.folders.inspection import OnProgress


def check_study_data(
    spec: StudySpec, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """What the data set of the study holds; raises ``InputError`` where it is missing or cannot be used."""
    anywhere = next(spec.corners())
    found = [
        check_data(config, on_progress, may_download=may_download)
        for config in {c.data: c for c in (spec.config(anywhere | values) for values in spec.corners("data"))}.values()
    ]
    return found[0]  # the images are the same for all configurations of a study
