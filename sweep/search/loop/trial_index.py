"""The trials of a study by number and by content key, with the counts that a proposal requires.

The counts are kept up to date, so that a proposal takes as long in a study of 100,000 trials as in one of ten.
"""

import uuid
from collections.abc import Iterable
from typing import final

from sweep.config.trial_config import TrialConfig
from sweep.records.content_key import list_library_versions, trial_key
from sweep.records.messages import NOT_COUNTED
from sweep.records.source_digest import digest_code
from sweep.records.trial_record import TrialRecord
from sweep.training.data.data_checks import make_inputs_digest


@final
class TrialIndex:
    """Records by number; a record replaces that of the same number. Trials of the numbers ``not_counted`` are on record
    and nothing else: they are tried again, and the search and its confirmation do not depend on them."""

    def __init__(self, records: Iterable[TrialRecord], not_counted: frozenset[int] = frozenset()) -> None:
        self._not_counted = not_counted
        self._records: dict[int, TrialRecord] = {}
        self._keys: set[str] = set()
        self._search_keys: set[str] = set()
        self.next_number = 0
        self.num_changes = 0  # a list that was derived from the records is valid as long as this is the same
        self.num_counted = 0  # search trials that are running, or that were trained or reused
        self.num_enqueued = 0  # of the proposed ones, those that were made by hand
        self.num_proposed = 0  # search trials, each configuration that was tried again once
        for record in records:
            self.put(record)

    def __getitem__(self, number: int) -> TrialRecord:
        return self._records[number]

    def records(self) -> list[TrialRecord]:
        return [self._records[number] for number in sorted(self._records)]

    def counted_records(self) -> list[TrialRecord]:
        return [record for record in self.records() if record.number not in self._not_counted]

    def put(self, record: TrialRecord) -> None:
        """Adds a new trial, or replaces a known one."""
        previous = self._records.get(record.number)
        self._records[record.number] = record
        self.num_changes += 1
        self.next_number = max(self.next_number, record.number + 1)
        self._keys.add(record.trial_key)
        if record.phase == "search":
            self._search_keys.add(record.trial_key)
            if record.number in self._not_counted:
                return
            self.num_proposed += previous is None
            self.num_enqueued += previous is None and record.is_enqueued
            was_counted = previous is not None and previous.outcome not in NOT_COUNTED
            self.num_counted += (record.outcome not in NOT_COUNTED) - was_counted

    @property
    def num_points(self) -> int:
        """How many different configurations the search has had."""
        return len(self._search_keys)

    def has_key(self, key: str) -> bool:
        return key in self._keys


@final
class KeyMaker:
    """Makes content keys of configurations. ``data_digest`` is that of the images, which are the same for all of them;
    where it is not known ("") no key is equal to one of before. Each file of initial weights is read once."""

    def __init__(self, plugin: str | None = None, data_digest: str = "") -> None:
        self._code = digest_code(plugin)
        self._versions = list_library_versions()
        self._data = data_digest or uuid.uuid4().hex
        self._digests: dict[str | None, str] = {}

    def __call__(self, config: TrialConfig) -> str:
        weights = config.model.weights
        if weights not in self._digests:
            self._digests[weights] = make_inputs_digest(config, self._data)
        return trial_key(config, self._digests[weights], self._code, self._versions)
