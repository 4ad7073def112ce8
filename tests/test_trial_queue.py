"""Hand-made trials in the queue: checked at once, trained first, counted, marked, and learned from."""

import contextlib
from contextlib import closing
from pathlib import Path

import pytest
from cli_calls import call_sweep
from records_factory import add_trials, make_config, make_spec, make_store
from test_tuner import run

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.records.loading import load_frames
from sweep.records.store import Store, enqueue_point, list_waiting, open_store, remove_point, take_point
from sweep.search.tuner import TrialEnded

POINT = {"batch.micro": 64, "optimizer.lr": 0.25}


def settings(store: Store) -> list[tuple[object, object, bool]]:
    return [
        (each.values["batch.micro"], each.values["optimizer.lr"], each.is_enqueued) for each in store.trial_records("s")
    ]


def make_study(folder: Path, **fields: object) -> tuple[Store, StudySpec]:
    spec = make_spec(sampler="random", confirm={"max_configurations": 0}, **fields)
    return make_store(folder / "study.sqlite", spec), spec


def test_an_enqueued_trial_is_first_marked_and_counted(tmp_path: Path) -> None:
    first = {"batch.micro": 32, "optimizer.lr": 0.5}
    store, spec = make_study(tmp_path, trials=4, first=[first])
    with closing(store):
        enqueue_point(store, "s", POINT)
        run(store, spec)
        found = settings(store)
        assert found[:2] == [(64, 0.25, True), (32, 0.5, False)]  # the points of `first` are not lost
        assert len(found) == 4
        assert list_waiting(store.database, "s") == []
    frame = load_frames(tmp_path).trials
    assert frame["is_enqueued"].tolist() == [True, False, False, False]
    assert load_frames(tmp_path).queue["number"].tolist() == [0]


def test_other_proposals_are_those_without_the_queue(tmp_path: Path) -> None:
    plain, spec = make_study(tmp_path / "plain", trials=3)
    queued, _ = make_study(tmp_path / "queued", trials=3)
    with closing(plain), closing(queued):
        run(plain, spec)
        enqueue_point(queued, "s", POINT)
        run(queued, spec)
        assert settings(queued)[1:] == settings(plain)[:2]


def test_one_that_arrives_while_the_study_runs_is_next(tmp_path: Path) -> None:
    store, spec = make_study(tmp_path, trials=3)
    with closing(store):
        run(store, spec, stop_after=1)
        with closing(open_store(tmp_path / "study.sqlite")) as other:
            enqueue_point(other, "s", POINT)
        run(store, spec)
        assert settings(store)[1] == (64, 0.25, True)


def test_the_sampler_fills_what_is_left_open_and_learns(tmp_path: Path) -> None:
    spec = make_spec(trials=6, sampler="tpe", pruner="none", confirm={"max_configurations": 0})
    with closing(make_store(tmp_path / "study.sqlite", spec)) as store:
        enqueue_point(store, "s", {"optimizer.lr": 0.25})
        events = run(store, spec)
        (micro, rate, is_enqueued), *others = settings(store)
        assert (rate, is_enqueued) == (0.25, True)
        assert spec.space["batch.micro"].has(micro)  # type: ignore[arg-type]
        assert len(others) == 5
        assert sum(isinstance(event, TrialEnded) for event in events) == 6


def test_a_spent_budget_keeps_it_waiting(tmp_path: Path) -> None:
    store, spec = make_study(tmp_path, trials=2)
    with closing(store):
        run(store, spec)
        enqueue_point(store, "s", POINT)
        run(store, spec)
        assert [each.point for each in list_waiting(store.database, "s")] == [POINT]
        larger = make_spec(sampler="random", confirm={"max_configurations": 0}, trials=3)
        store.update_spec(larger)
        run(store, larger)
        assert settings(store)[2] == (64, 0.25, True)


def test_a_kill_leaves_the_point_waiting_or_with_its_trial(tmp_path: Path) -> None:
    store, _ = make_study(tmp_path, trials=2)
    with closing(store):
        waiting = enqueue_point(store, "s", POINT)
        with contextlib.suppress(KeyboardInterrupt), store.database.transaction():
            record = store.add_trial("s", 0, "search", make_config(2), "key")
            take_point(store.database, "s", waiting.position, record)
            raise KeyboardInterrupt
        assert store.trial_records("s") == []
        with pytest.raises(InputError, match="no waiting point 7"):
            remove_point(store.database, "s", 7)
        assert len(list_waiting(store.database, "s")) == 1


@pytest.mark.parametrize(("point", "message"), [
    ({"batch.micro": 48}, r"batch.micro = 48 is outside its range, .* run a study of another name"),
    ({"optimizer.lrr": 0.5}, "optimizer.lrr does not vary in this study, whose space is batch.micro, optimizer.lr"),
    ({"batch.micro": 16, "optimizer.lr": 0.001}, "trial 0 has this configuration and seed already"),
])  # fmt: skip
def test_what_cannot_be_a_trial_is_refused_at_once(tmp_path: Path, point: dict[str, object], message: str) -> None:
    store, _ = make_study(tmp_path, trials=2)
    with closing(store):
        add_trials(store, ["complete"])
        with pytest.raises(InputError, match=message):
            enqueue_point(store, "s", point)
        assert list_waiting(store.database, "s") == []


def test_the_command_enqueues_lists_and_removes(tmp_path: Path) -> None:
    (tmp_path / "runs/quickstart").mkdir(parents=True)
    make_store(tmp_path / "runs/quickstart/study.sqlite", load_study("quickstart")).close()
    for words, code, said in [
        (["--enqueue", "batch.micro=64"], 0, "enqueued as number 1 of the queue"),
        (["--enqueue", "batch.micro=64"], 2, "this point waits already, as number 1"),
        (["--enqueue", "batch.micro=100000"], 2, "`sweep train` trains anything else"),
        (["--enqueue", "batch.micro=32", "--remove", "1"], 2, ""),
        ([], 0, "enqueued, number 1 of the queue: batch.micro=64"),
    ]:
        ended = call_sweep("trials", "quickstart", *words, cwd=tmp_path)
        assert ended.returncode == code, ended.stderr
        assert said in " ".join((ended.stderr if code else ended.stdout).split())
    removed = call_sweep("trials", "quickstart", "--remove", "1", "--json", cwd=tmp_path)
    assert removed.stdout == '{"study": "quickstart", "queue": []}\n'
