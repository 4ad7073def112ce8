"""The storm: faults upon real studies. A tenth of it by default, all of it where ``SWEEP_STORM`` is set."""

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tally import IS_WHOLE, PROPERTY, Tally

_LEAST_FAULTS = 510
_TALLIES: list[dict[str, Any]] = []
_FILES: set[str] = set()  # of the tests that ran


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """What the test counts; fails it where something was lost, doubled or left behind."""
    counted = Tally()
    yield counted
    request.node.user_properties.append((PROPERTY, asdict(counted)))
    counted.check()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _FILES.add(report.nodeid.partition("::")[0])
        _TALLIES.extend(value for name, value in report.user_properties if name == PROPERTY)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """The last line of the session, of the process that has heard of all tests."""
    bad = sum(len(found[name]) for found in _TALLIES for name in ("lost", "duplicates", "zombies"))
    if bad or _is_too_little():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if _TALLIES and reporter is not None and not hasattr(session.config, "workerinput"):
        for line in _summary():
            reporter.write_line(line)


def _is_too_little() -> bool:
    all_files = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    has_all = {Path(name).name for name in _FILES} >= all_files
    return IS_WHOLE and has_all and sum(_faults().values()) < _LEAST_FAULTS


def _faults() -> Counter[str]:
    total: Counter[str] = Counter()
    for counted in _TALLIES:
        total.update(counted["faults"])
    return total


def _summary() -> Iterator[str]:
    faults = _faults()
    for kind, number in sorted(faults.items()):
        yield f"{number:6d}  {kind}"
    for what in sorted({what for counted in _TALLIES for what in counted["notes"]}):
        values = [counted["notes"][what] for counted in _TALLIES if what in counted["notes"]]
        yield f"{max(values):6.2f}  {what}, at most"
    sums = (f"{name} {sum(len(counted[name]) for counted in _TALLIES)}" for name in ("lost", "duplicates", "zombies"))
    yield f"faults {faults.total()}  {'  '.join(sums)}"
