"""One browser and one page of a study for all tests of a file."""

import dataclasses
from contextlib import ExitStack, closing

import pytest
from frames_factory import estimates_of, make_frames
from visiting import CHROMIUM, SWITCHES, Visit

from reports.writing import write_report


@pytest.fixture(scope="session")
def chromium():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def study():
    """Of few panels, because every choice draws them all again."""
    space = {
        "model.name": {"choice": ["resnet8", "vit_micro"]},
        "batch.micro": {"log2": [4, 8]},
        "optimizer.lr": {"log": [1e-3, 1.0]},
    }
    frames = make_frames(50, confirm=3, space=space, objectives=["val_accuracy", "train_seconds"])
    return dataclasses.replace(frames, probes=estimates_of(frames.spec))


@pytest.fixture(scope="session")
def report(study, tmp_path_factory):
    return write_report(study, tmp_path_factory.mktemp("report") / "report.html", formats=())


@pytest.fixture(scope="module")
def open_visit(chromium):
    """Opens a page as ``Visit`` does, until the end of the file's tests."""
    with ExitStack() as opened:
        yield lambda *given, **options: opened.enter_context(closing(Visit(chromium, *given, **options)))


@pytest.fixture(scope="module")
def visit(open_visit, report):
    return open_visit(report, permissions=["clipboard-read", "clipboard-write"])
