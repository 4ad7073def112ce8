"""JSON documents of a few dataclasses, told apart by the key ``kind``: the one format of all messages of processes."""

import json
from dataclasses import Field, asdict
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar, final

from pydantic import BaseModel, TypeAdapter


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Document = TypeVar("Document", bound=_Dataclass)


@final
class TaggedCodec(Generic[Document]):
    """Encodes and decodes instances of ``classes``; ``kind`` is the name of the class in lower case.

    Values are validated when they arrive: another process, or another version of this program, has written them.
    """

    def __init__(self, *classes: type[Document], max_bytes: int = 1 << 30) -> None:
        self._classes = {_kind_of(each): each for each in classes}
        self._max_bytes = max_bytes

    def encode(self, document: Document) -> bytes:
        """JSON without a line end; NaN and infinities stay as Python's JSON writes them."""
        fields = {"kind": _kind_of(type(document)), **asdict(document)}
        return json.dumps(fields, default=_dump_model).encode()

    def decode(self, data: bytes) -> Document:
        """The inverse of :meth:`encode`.

        Raises:
            ValueError: ``data`` is anything else, or too long.
        """
        if len(data) > self._max_bytes:
            raise ValueError(f"a message of {len(data)} bytes: at most {self._max_bytes} are read")
        try:
            fields = json.loads(data)
        except RecursionError:
            raise ValueError("a message that is nested too deeply") from None
        kind = fields.pop("kind", None) if isinstance(fields, dict) else None
        if not isinstance(kind, str) or kind not in self._classes:
            raise ValueError(f"unknown message kind {kind!r:.200}")
        form = self._classes[kind]
        if unknown := fields.keys() - form.__dataclass_fields__.keys():
            raise ValueError(f"a message of kind {kind!r} with the unknown key {min(unknown)!r:.200}")
        document: Document = _validator(form).validate_python(fields)
        return document


def _kind_of(form: type[Any]) -> str:
    return form.__name__.lower()


def _dump_model(value: object) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True)
    raise TypeError(f"a {type(value).__name__} cannot be sent")


@cache
def _validator(form: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(form)
