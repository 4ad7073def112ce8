"""Loads the data set that a configuration names, or finds its size before; see :mod:`sweep.config.tables.datasets`."""

from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.tables.datasets import DATASETS, DataFacts
from sweep.config.tables.entries import find_entry, resolve
from sweep.records.messages import ExpectedData
from sweep.training.data.digests import check_unchanged
from sweep.training.data.source_checks import load_checked
from sweep.training.data.splits import Source, Splits, split_source


def load_splits(section: DataSection, expected: ExpectedData | None = None) -> Splits:
    """The splits of the data set that ``section`` names; its images are compared with those ``expected``.

    Raises:
        InputError: for an unknown set, missing files, too few images, or others than expected.
    """
    source = load_source(section)
    if expected is not None:
        check_unchanged(source, section, expected)
    return split_source(source, section)


def load_source(section: DataSection) -> Source:
    """The images of the data set that ``section`` names, before anything is held out; raises as :func:`load_splits`."""
    load = find_entry("data set", section.name, DATASETS).load
    if load is None:
        raise InputError(
            f"data set {section.name!r} is known from records alone; give the file of its plug-in: --plugin."
        )
    return load_checked(resolve(load), section)


def find_facts(section: DataSection) -> DataFacts:
    """Shape and number of the training images of the set that ``section`` names; loads it only where nothing is known.

    Raises:
        InputError: for a set that must be looked at and is not there.
    """
    entry = find_entry("data set", section.name, DATASETS)
    # a fixed number of training images holds for the usual hold-out alone
    fixed = entry.facts if section.validation_share is None else None
    facts: DataFacts | None = resolve(entry.find_facts)(section) if entry.find_facts else fixed
    if facts is None:
        splits = load_splits(section)
        return DataFacts(splits.shape, len(splits.train))
    return facts._replace(num_train=min(section.subset or facts.num_train, facts.num_train))
