"""A search on recorded trainings with the tuner of real studies."""

import pytest
from table_factory import write_table

from benchmarks.replay import RecordedTable, make_replay_study, read_table, replay_search

pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RecordedTable:
    return read_table(write_table(tmp_path_factory.mktemp("table")))


def test_a_whole_search_tries_every_point_once_and_repeats_itself(table: RecordedTable) -> None:
    spec = make_replay_study(table, "r", sampler="tpe", seed=5, trials=18)
    search, again, short = replay_search(table, spec), replay_search(table, spec), replay_search(table, spec, 0.7)
    trainings = [table.training(spec.config(dict(zip(table.space, point, strict=True)))) for point in table.points]
    assert search.outcomes == {"complete": 18}
    assert search.search_seconds == pytest.approx(sum(t.ending.measurements["total_seconds"] for t in trainings))
    assert search.progress == again.progress
    assert search.share == pytest.approx(1.0)
    assert 1 < sum(table.on_front) < len(table.points) == 18
    assert short.search_seconds == short.seconds_to(0.7) == search.seconds_to(0.7) < search.search_seconds
