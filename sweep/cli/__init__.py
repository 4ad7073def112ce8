"""The command line: `sweep COMMAND`, and what a notebook shows of a running study.

Here belongs what parses arguments and prints; nothing imports it."""


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    from sweep.cli.app import run_app

    raise SystemExit(run_app())
