"""The trials of a study as the tuner knows them, with everything that it asks before a proposal counted as they come.

So a proposal takes as long in a study of 100,000 trials as in one of ten.
"""

from collections import Counter
from collections.abc import Iterable
from typing import final

from sweep.records.messages import NOT_COUNTED, Phase
from sweep.records.trial_record import TrialRecord


@final
class TrialIndex:
    """Records by number; one replaces that of the same number."""

    def __init__(self, records: Iterable[TrialRecord]) -> None:
        self._records: dict[int, TrialRecord] = {}
        self._live_keys: Counter[str] = Counter()
        self._search_keys: set[str] = set()
        self._cancelled: dict[int, TrialRecord] = {}
        self.next_number = 0
        self.num_changes = 0  # so that what was worked out from the records is known to be of now
        self.num_counted = 0  # search trials that trained or were reused, and those that run
        self.num_proposed = 0  # search trials that are not to be trained again
        for record in records:
            self.put(record)

    def __getitem__(self, number: int) -> TrialRecord:
        return self._records[number]

    def records(self) -> list[TrialRecord]:
        """All trials so far, by number."""
        return [self._records[number] for number in sorted(self._records)]

    def put(self, record: TrialRecord) -> None:
        """A new trial, or news of a known one."""
        if known := self._records.get(record.number):
            self._count(known, -1)
        self._records[record.number] = record
        self.num_changes += 1
        self._count(record, 1)
        self.next_number = max(self.next_number, record.number + 1)
        if record.outcome == "cancelled":
            self._cancelled[record.number] = record
        elif record.phase == "search":
            self._search_keys.add(record.trial_key)

    @property
    def num_points(self) -> int:
        """How many different configurations the search has had."""
        return len(self._search_keys)

    def has_key(self, key: str) -> bool:
        """Whether a trial of that content key is there that was not cancelled."""
        return self._live_keys[key] > 0

    def take_cancelled(self, phase: Phase) -> TrialRecord | None:
        """The first cancelled trial that no later one stands for."""
        for number in sorted(self._cancelled):
            record = self._cancelled[number]
            if self.has_key(record.trial_key):
                del self._cancelled[number]
            elif record.phase == phase:
                return record
        return None

    def _count(self, record: TrialRecord, step: int) -> None:
        if record.outcome != "cancelled":
            self._live_keys[record.trial_key] += step
        if record.phase == "search":
            self.num_counted += step * (record.outcome not in NOT_COUNTED)
            self.num_proposed += step * (record.outcome != "cancelled")
