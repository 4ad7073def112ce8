"""What the trials of a study read besides its file: the images and the plug-in. Recorded with the study, so that a
change is noticed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sweep.records.data_summary import DataSummary


@dataclass(frozen=True, kw_only=True)
class StudyInputs:
    """The images as they were counted, and the digest of each source file of the plug-in."""

    data: DataSummary | None = None  # None in records that were not made by a run
    plugin: Mapping[str, str] = field(default_factory=dict)  # by path relative to the plug-in's folder

    def to_json(self) -> str:
        """The inputs as text."""
        return json.dumps({"data": self.data and self.data.document(), "plugin": dict(self.plugin)})

    @classmethod
    def from_json(cls, text: str | None) -> Self:
        """The inputs that :meth:`to_json` wrote; none for an empty text.

        Raises:
            ValueError: the text is not one of these.
        """
        document: dict[str, Any] = json.loads(text or "{}")
        try:
            data = document.get("data")
            return cls(data=data and DataSummary.from_document(data), plugin=document.get("plugin") or {})
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no inputs of a study: {error!r}") from None


def find_changed_inputs(old: StudyInputs, new: StudyInputs) -> list[str]:
    """What changed of that which the trials of ``old`` read, a line each; what either does not know is not compared."""
    changed = []
    if old.data and new.data and old.data.is_other_than(new.data):
        changed.append(f"data: {old.data.describe()} -> {new.data.describe()}")
    if old.plugin and new.plugin:
        changed += [
            f"plug-in {name}: {old.plugin.get(name, 'absent')[:12]} -> {new.plugin.get(name, 'absent')[:12]}"
            for name in sorted({*old.plugin, *new.plugin})
            if old.plugin.get(name) != new.plugin.get(name)
        ]
    return changed
