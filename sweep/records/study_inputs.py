"""What the trials of a study read besides its file: the images and the plug-in. Recorded with the study, so that a
change is noticed; and what the user typed to run it, so that a printed command can be repeated."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from sweep.config.commands import StudyOrigin
from sweep.config.errors import InputError, shorten_text
from sweep.records.data_summary import DataSummary


@dataclass(frozen=True, kw_only=True)
class StudyInputs:
    """The images as they were counted, the digest of each source file of the plug-in, and the command line."""

    data: DataSummary | None = None  # None in records that were not made by a run
    plugin: Mapping[str, str] = field(default_factory=dict)  # by path relative to the plug-in's folder, itself first
    origin: StudyOrigin = field(default_factory=StudyOrigin)

    @property
    def plugin_file(self) -> str:
        """The plug-in's file as the user gave it, otherwise its name; "" without one."""
        return self.origin.plugin if self.plugin and self.origin.plugin else next(iter(self.plugin), "")

    def to_json(self) -> str:
        """The inputs as text."""
        document = {"data": self.data and self.data.document(), "plugin": dict(self.plugin)}
        return json.dumps(document | {"origin": asdict(self.origin)})

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """The inputs that :meth:`to_json` wrote; none for an empty text.

        Raises:
            InputError: the text is not one of these; ``where`` names its source.
        """
        try:
            document: dict[str, Any] = json.loads(text or "{}")
            data, plugin = document.get("data"), document.get("plugin") or {}
            if not all(isinstance(digest, str) for digest in plugin.values()):
                raise TypeError("a digest that is no text")
            return cls(
                data=None if data is None else DataSummary.from_document(data),
                plugin=plugin,
                origin=_read_origin(document.get("origin") or {}),
            )
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = shorten_text(f"{type(error).__name__}: {error}")
            raise InputError(f"{where}: what its trials read is damaged in the records: {reason}.") from None


def _read_origin(document: dict[str, Any]) -> StudyOrigin:
    argument, changes, plugin, options = (document.get(key, usual) for key, usual in vars(StudyOrigin()).items())
    is_text = all(isinstance(each, str) for each in (argument, plugin, *options))
    if not (is_text and isinstance(changes, dict) and isinstance(options, list | tuple)):
        raise TypeError("a command line that is no text")
    return StudyOrigin(argument=argument, changes=changes, plugin=plugin, options=tuple(options))


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
