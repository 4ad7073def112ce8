"""The message at the end of a run: a command is started, or a JSON document is posted to a URL. Neither fails the run.

An address or a command often contains a secret. Neither is recorded or printed: of a URL the host is named, of a
command the program.
"""

import contextlib
import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from sweep.cli.output import print_lines
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.records.store.database_errors import StoreError

if TYPE_CHECKING:
    from sweep.search.loop.session import Session

_POST_SECONDS = 10.0
_COMMAND_SECONDS = 30.0
_SCHEMES = ("http", "https")
# keys of the message that an argument of the command may contain in braces
_PLACEHOLDERS = ("study", "outcome", "answer", "text")


@final
class _NoRedirects(HTTPRedirectHandler):
    """A redirection is refused: the message is for the host that the user named."""

    def redirect_request(self, *_: Any) -> None:
        return None


@final
@dataclass(frozen=True)
class Notifier:
    """Where the message goes; "" for nowhere."""

    command: str = field(default="", repr=False)
    url: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raises ``InputError`` for a URL or a command that cannot work."""
        if self.url:
            _check_url(self.url)
        if self.command:
            self._split()

    def send(self, message: dict[str, Any]) -> Iterator[str]:
        """Sends ``message``; yields a line for each address that did not get it."""
        if self.url:
            yield from _post(self.url, message)
        if self.command:
            yield from _start(self._split(), message)

    def _split(self) -> list[str]:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise InputError(f"--notify-command: {error}; quote it as for a shell.") from None
        if not words or shutil.which(words[0]) is None:
            program = words[0] if words else ""
            raise InputError(f"--notify-command: there is no program {program!r}; give its path. No shell is started.")
        return words


def _check_url(url: str) -> None:
    # the URL is not quoted, because its path is often a secret
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InputError("--notify-url: it cannot be read; write https://HOST/PATH.") from None
    if parts.scheme not in _SCHEMES or not host:
        raise InputError(f"--notify-url: the scheme is {parts.scheme!r}; write http://HOST/PATH or https://HOST/PATH.")
    if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise InputError("--notify-url: it has a user name, a space or letters that a URL has not; remove them.")


def _post(url: str, message: dict[str, Any]) -> Iterator[str]:
    host = urlsplit(url).hostname
    body = json.dumps(message).encode()
    request = Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")
    try:
        with build_opener(_NoRedirects).open(request, timeout=_POST_SECONDS):  # nosec B310 # http or https alone
            return
    except HTTPError as error:
        with error:
            hint = "; it redirects, and no redirection is followed" if 300 <= error.code < 400 else ""
            yield f"the message to {host} failed: it answered {error.code}{hint}"
    except URLError as error:
        yield f"the message to {host} failed: {getattr(error.reason, 'strerror', None) or error.reason}"
    except (OSError, HTTPException, ValueError) as error:
        yield f"the message to {host} failed: {type(error).__name__}"


def _start(words: list[str], message: dict[str, Any]) -> Iterator[str]:
    program = words[0]
    filled = [_fill(word, message) for word in words]
    try:
        ended = subprocess.run(
            filled, input=json.dumps(message).encode(), capture_output=True, timeout=_COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        yield f"the command {program} for the message was stopped after {_COMMAND_SECONDS:g} s"
    except OSError as error:
        yield f"the command {program} for the message failed: {error.strerror}"
    else:
        if ended.returncode:
            yield f"the command {program} for the message failed: exit code {ended.returncode}"


def _fill(word: str, message: dict[str, Any]) -> str:
    for name in _PLACEHOLDERS:
        word = word.replace(f"{{{name}}}", str(message.get(name) or ""))
    return word


@contextlib.contextmanager
def send_message_at_end(notifier: Notifier, spec: StudySpec) -> Iterator[dict[str, Any]]:
    """Sends a message when the block ends. The block puts what it knows into the dictionary: ``exit_code``,
    ``stopped``, ``report``, and ``records`` as :func:`gather_records` returns them. An error is sent too, except for
    input that was refused."""
    began = time.monotonic()
    known: dict[str, Any] = {"exit_code": 1, "stopped": None}
    error: BaseException | None = None
    try:
        yield known
    except BaseException as caught:
        error = caught
        raise
    finally:
        if error is not None and not isinstance(error, Exception):  # a second signal, or one before the first trial
            known["exit_code"] = getattr(error, "exit_code", 130)
        if not isinstance(error, InputError):
            message = _compose(spec, known, error, time.monotonic() - began)
            print_lines(notifier.send(message), err=True)


def gather_records(session: "Session") -> dict[str, Any]:
    """The records' part of the message: how many trials ended how, and the answer as one sentence. Empty, with a line
    on standard error, where the records cannot be read: no message fails a run."""
    from reports.evidence import gather_evidence
    from reports.texts import describe_first
    from sweep.records.frames.frames import load_frames

    try:
        first = describe_first(gather_evidence(load_frames(session.records_place)))
    except (InputError, StoreError) as error:
        print_lines([f"the message has no answer: {error}"], err=True)
        return {}
    trials = session.store.trial_records(session.spec.name)
    outcomes: dict[str, int] = {}
    for record in trials:
        name = record.outcome or "interrupted"
        outcomes[name] = outcomes.get(name, 0) + 1
    return {"answer": first.headline, "certainty": first.certainty, "num_trials": len(trials), "outcomes": outcomes}


def _compose(spec: StudySpec, known: dict[str, Any], error: BaseException | None, seconds: float) -> dict[str, Any]:
    message: dict[str, Any] = {
        "study": spec.name,
        "outcome": _name_outcome(known, error),
        "answer": None,
        "certainty": None,
        "num_trials": None,
        "outcomes": None,
        "stopped": known["stopped"],
        "report": known.get("report"),
        "exit_code": known["exit_code"],
        "seconds": round(seconds, 3),
        "error": _name_error(error),
    } | known.get("records", {})
    message["text"] = " ".join(
        str(part)
        for part in (f"Study {spec.name}: {message['outcome']}.", message["answer"], message["stopped"])
        if part
    )
    return message


def _name_error(error: BaseException | None) -> str | None:
    # other texts may quote an address with its password
    return None if error is None else str(error) if isinstance(error, StoreError) else type(error).__name__


def _name_outcome(known: dict[str, Any], error: BaseException | None) -> str:
    if isinstance(error, Exception):
        return "failed"
    if known["exit_code"] > 2:
        return "interrupted"
    return "failed" if known["exit_code"] else "complete" if not known["stopped"] else "stopped early"
