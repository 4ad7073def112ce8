"""The command group, and what all commands share: errors, signals, exit codes.

A command's module is imported when the command is invoked, so that `sweep --help` imports nothing but typer.
"""

import json
import logging
import os
import platform
import signal
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NamedTuple, final

import typer
from typer.core import TyperGroup

from sweep.config.errors import InputError, StoppedError
from sweep.config.metrics import Quality
from sweep.records.address import has_password
from sweep.search.shutdown import REASONS

# Control characters except line ends and tabs, and those that reverse the direction of writing.
_OBEYED = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {0x09, 0x0A}
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _OBEYED}


def escape_controls(text: str) -> str:
    """``text`` with the control characters that a terminal would execute (colors, cursor movement) as escapes. For
    text from records, errors and files of others."""
    return text.translate(_ESCAPES)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    for line in lines:
        typer.echo(escape_controls(line), err=err)


def print_table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> None:
    """Prints rows of cells on standard output, aligned and folded at the width of the terminal."""
    from rich.console import Console  # 0.1 s that no help text needs
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_controls(cell)) for cell in row))
    Console(highlight=False).print(table)


def print_answer(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Prints ``document`` as JSON on standard output, or ``lines`` for people."""
    if as_json:
        typer.echo(json.dumps(document))
    else:
        print_lines(lines)


def describe_trial(
    head: tuple[int, str, str],
    values: Mapping[str, Any],
    settings: Mapping[str, Any],
    quality: Quality,
    is_enqueued: bool,
) -> str:
    """A trial on one line: number, phase and outcome, what it measured by name of the metric, and its swept keys."""
    from reports.labels import OUTCOME_NAMES, format_metric

    number, phase, outcome = head
    names = {name: quality.name if name == quality.column else name for name in values}
    measured = "  ".join(f"{names[name]} {format_metric(name, value, quality)}" for name, value in values.items())
    by_hand = "  enqueued by hand" if is_enqueued else ""
    how = OUTCOME_NAMES.get(outcome, outcome)
    return f"trial {number:>4} {phase:<7} {how:<13} {measured}  [{join_settings(settings)}]{by_hand}"


def join_settings(settings: Mapping[str, Any]) -> str:
    """The values of swept keys, by dotted key."""
    return " ".join(f"{key}={f'{value:.3g}' if isinstance(value, float) else value}" for key, value in settings.items())


class _CommandEntry(NamedTuple):
    """Where a command's function is, and the first sentence of its help."""

    module: str
    function: str
    summary: str


COMMANDS: dict[str, _CommandEntry] = {
    "ask": _CommandEntry("ask", "ask", "Write a study from a few questions, and run it within a budget."),
    "run": _CommandEntry("run", "run", "Run a study or resume it, then write its report."),
    "check": _CommandEntry("check", "check", "Check a study and its records, or this machine."),
    "train": _CommandEntry("run", "train", "Train one configuration and print its record."),
    "cost": _CommandEntry("cost", "cost", "Forecast peak memory, or measure step time and memory."),
    "recommend": _CommandEntry("answer", "recommend", "Recommend a batch size and a configuration for each use."),
    "report": _CommandEntry("records", "report", "Write the report of a study: HTML page and figures."),
    "compare": _CommandEntry("answer", "compare", "Compare two studies."),
    "claims": _CommandEntry("answer", "claims", "List claims, test them, or plan the study that settles one."),
    "trials": _CommandEntry("records", "trials", "List the trials of a study, or enqueue one."),
    "export": _CommandEntry("records", "export", "Export the records of a study."),
    "import": _CommandEntry("records", "import_study", "Import records as a study under the root."),
    "dashboard": _CommandEntry("records", "dashboard", "Browse a study in optuna-dashboard, read-only."),
    "list": _CommandEntry("check", "list_studies", "List the shipped studies, print one, or list all keys."),
}


def load_command(name: str) -> Any:
    """The command called ``name`` of ``COMMANDS``, as typer's object."""
    entry = COMMANDS[name]
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(getattr(import_module(f"sweep.cli.{entry.module}"), entry.function))
    return typer.main.get_command(single)


@final
class _LazyGroup(TyperGroup):
    """Holds a placeholder with the summary of each command, and loads the one that is invoked."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder and load_command(str(name)), rest


app = typer.Typer(
    name="sweep",
    cls=_LazyGroup,
    help="Measure how batch size, learning rate and other hyperparameters change accuracy, time and memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name, _entry in COMMANDS.items():
    app.command(_name, help=_entry.summary)(lambda: None)


def _print_versions(is_requested: bool) -> None:
    if not is_requested:
        return
    from importlib.metadata import version  # of what is installed, because torch takes seconds to import

    typer.echo(f"batch-sweep {version('batch-sweep')} (Python {platform.python_version()}, torch {version('torch')})")
    raise typer.Exit


@app.callback()
def _read_options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_versions, is_eager=True, help="Show the versions of sweep, Python and torch."
        ),
    ] = False,
) -> None:
    return


class _Terminated(BaseException):
    """SIGTERM or SIGUSR1 arrived; unwinds like Ctrl-C so that what is running is put on the record."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.cause, self.exit_code = REASONS[number]


def run_app(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    warnings.simplefilter("ignore", FutureWarning)
    _warn_of_passwords(sys.argv[1:] if arguments is None else arguments)
    before = {number: signal.signal(number, _terminate) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        return _run(arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(arguments, standalone_mode=False)
    except InputError as error:
        return _print_error(str(error), 2)
    except StoppedError as error:
        return _print_error(str(error), 1)
    except SystemExit as ending:  # typer's end on a closed pipe
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        # what reads the output has ended, as `head` does: there is nobody to tell, and a flush at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _print_error(f"{error.filename or 'input or output'}: {error.strerror or error}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _print_error("interrupted", 130)
    except _Terminated as ending:
        return _print_error(ending.cause, ending.exit_code)
    except typer.Exit as ending:  # typer's translation of Ctrl-C
        return _print_error("interrupted", 130) if ending.exit_code == 130 else ending.exit_code
    except typer.TyperException as error:
        return _print_error(error.format_message(), error.exit_code)
    return code if isinstance(code, int) else 0


def _warn_of_passwords(arguments: list[str]) -> None:
    if any(has_password(argument) for argument in arguments if "://" in argument):
        logging.getLogger(__name__).warning(
            "every user of this machine can see a password in the command line (ps); "
            "put the URL into the variable SWEEP_STORE, or the password into ~/.pgpass."
        )


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise _Terminated(number)


def _print_error(message: str, code: int) -> int:
    from rich.console import Console  # 0.1 s, and only a failure needs it
    from rich.markup import escape

    label = "error" if code in (1, 2) else "stopped"
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        f"[bold red]{label}:[/] {escape(escape_controls(message))}"
    )
    return code
