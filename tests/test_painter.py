"""The process that draws pictures: it gives what this process would draw, and its end stops nothing."""

import os

import psutil
from frames_factory import make_frames

from reports.evidence import gather_evidence
from reports.figure import Paper
from reports.figures.all_figures import make_figures
from reports.print.painter import MAX_PROCESSES, Painter, dump_task, load_task
from reports.print.pictures import draw_picture
from reports.writing import write_frames_report


def test_figures_survive_the_way_there():
    for figure in make_figures(gather_evidence(make_frames(30, confirm=2))).figures:
        assert load_task(dump_task((figure, "png", Paper()))) == (figure, "png", Paper())


def test_it_draws_what_would_be_drawn_here():
    every = make_figures(gather_evidence(make_frames(12))).figures
    figures = [figure for figure in every if figure.name in {"memory", "outcomes"}]
    with Painter() as painter:
        for figure in figures:
            painter.send_task((figure, "png", Paper()))
        assert painter.collect_pictures() == [draw_picture(figure) for figure in figures]


def test_pictures_are_drawn_here_where_the_process_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("reports.print.painter._PROGRAM", "raise SystemExit(3)")
    frames = make_frames(3, objectives=["val_accuracy"], space={"batch.micro": {"log2": [4, 6]}})
    path = write_frames_report(frames, tmp_path / "report.html")
    names = {figure.name for figure in make_figures(gather_evidence(frames)).figures}
    assert {each.stem for each in path.parent.glob("*.png")} == names
    assert all(each.read_bytes().startswith(b"\x89PNG") for each in path.parent.glob("*.png"))


def test_a_painter_that_is_not_used_leaves_nothing_behind():
    with Painter() as painter:
        process = painter._process
    assert process.returncode is not None


def test_a_painter_that_is_killed_takes_its_workers_along():
    with Painter() as painter:
        workers = _workers_of(painter)
        painter._process.kill()
        assert painter.collect_pictures() is None
        _, alive = psutil.wait_procs(workers, timeout=30)
    assert workers
    assert not alive


def test_a_worker_that_is_killed_spoils_no_picture():
    with Painter() as painter:
        _workers_of(painter)[0].kill()
        for figure in make_figures(gather_evidence(make_frames(3))).figures:
            painter.send_task((figure, "png", Paper()))
        assert painter.collect_pictures() is None


def _workers_of(painter: Painter) -> list[psutil.Process]:
    painter.send_task((make_figures(gather_evidence(make_frames(3))).figures[0], "png"))
    found: list[psutil.Process] = []
    while len(found) < min(MAX_PROCESSES, len(os.sched_getaffinity(0))):  # they are forked at the first task
        assert painter._process.poll() is None
        found = psutil.Process(painter._process.pid).children()
    return found
