"""The commands, put together; what they share: errors, signals, exit codes."""

import logging
import signal
import sys
import warnings
from types import FrameType

import typer
from rich.console import Console
from rich.markup import escape

from sweep.cli.commands import check, compare, estimate, look, probe, recommend, records, replay, run, train
from sweep.cli.formats import visible
from sweep.config.errors import InputError
from sweep.records.address import has_password
from sweep.records.store.store import StoreError
from sweep.search.loop.shutdown import REASONS

app = typer.Typer(
    name="sweep",
    help="Measure what batch size, learning rate, weight decay and gradient accumulation cost and give.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (run, train, check, estimate, probe, records, recommend, compare, replay, look):
    module.register(app)


class Terminated(BaseException):
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
        return _complain(str(error), 2)
    except StoreError as error:
        return _complain(str(error), 1)
    except OSError as error:
        return _complain(f"{error.filename or 'input or output'}: {error.strerror or error}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)
    except Terminated as ending:
        return _complain(ending.cause, ending.exit_code)
    except typer.Exit as ending:  # which typer makes of Ctrl-C
        return _complain("interrupted", 130) if ending.exit_code == 130 else ending.exit_code
    except typer.TyperException as error:
        return _complain(error.format_message(), error.exit_code)
    return code if isinstance(code, int) else 0


def _warn_of_passwords(arguments: list[str]) -> None:
    if any(map(has_password, arguments)):
        logging.getLogger(__name__).warning(
            "everybody on this machine can see a password in the command line (ps); "
            "put the URL into the variable SWEEP_STORE, or the password into ~/.pgpass."
        )


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


def _complain(message: str, code: int) -> int:
    label = "error" if code in (1, 2) else "stopped"
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]{label}:[/] {escape(visible(message))}")
    return code
