"""The contract that every executor keeps."""

import time
from collections.abc import Callable, Iterator

import executor_runners
import pytest

from sweep.executors.base import Executor
from sweep.executors.inline import InlineExecutor
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, Message, Progress, TrialTask
from sweep.spec.trial import TrialConfig

Make = Callable[[str], Executor]


def _inline(runner: str) -> Executor:
    return InlineExecutor("cpu", f"executor_runners:{runner}", "executor_runners:describe")


def _process(runner: str) -> Executor:
    return ProcessExecutor(["cpu"], None, f"executor_runners:{runner}", "executor_runners:describe", modules=())


@pytest.fixture(params=[_inline, _process], ids=["inline", "process"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Executor] = []

    def build(runner: str) -> Executor:
        made.append(request.param(runner))
        return made[-1]

    yield build
    for executor in made:
        executor.close()


def task(number: int = 12, seed: int = 3) -> TrialTask:
    return TrialTask(number=number, config=TrialConfig(seed=seed))


def run(executor: Executor, given: TrialTask) -> list[Message]:
    """Everything that is heard of one trial, to its ending."""
    executor.start(given)
    messages: list[Message] = []
    deadline = time.monotonic() + 30
    while not (messages and isinstance(messages[-1], Ending)):
        assert time.monotonic() < deadline, f"no ending; heard {messages}"
        for number, message in executor.poll(1.0):
            assert number == given.number
            messages.append(message)
    return messages


def test_messages_arrive_whole_and_in_order(make: Make) -> None:
    messages = run(make("complete"), task())
    assert messages == list(executor_runners.complete(task()))


def test_a_diverged_trial_keeps_its_measurements_and_text(make: Make) -> None:
    *before, ending = run(make("diverged"), task())
    assert before == [executor_runners.evaluation(1)]
    assert ending == Ending("diverged", {"train_seconds": 1.5}, error=executor_runners.ERROR_TEXT)


def test_out_of_memory_is_passed_on(make: Make) -> None:
    (ending,) = run(make("out_of_memory"), task())
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.error[:18]) == ("out_of_memory", "CUDA out of memory")


@pytest.mark.parametrize(
    ("runner", "reason"),
    [("raises", "KeyError: 'the reason'"), ("no_ending", "without"), ("exits", "7"), ("missing", "missing")],
)
def test_a_trial_that_breaks_off_has_crashed_and_says_why(make: Make, runner: str, reason: str) -> None:
    *before, ending = run(make(runner), task())
    assert before == ([] if runner == "missing" else [executor_runners.evaluation(1)])
    assert isinstance(ending, Ending)
    assert ending.outcome == "crashed"
    assert reason in ending.error


def test_the_task_arrives_as_it_was_given(make: Make) -> None:
    given = TrialTask(number=5, config=TrialConfig(seed=77), threads=1)
    assert run(make("echo_task"), given) == [Ending("complete", {"seed": 77, "threads": 1}, device="cpu")]


def test_one_trial_after_the_other_and_none_twice(make: Make) -> None:
    executor = make("echo_task")
    for seed in (1, 2):
        (ending,) = run(executor, task(number=seed, seed=seed))
        assert isinstance(ending, Ending)
        assert ending.measurements["seed"] == seed
    assert executor.poll(0.0) == []


def test_a_stopped_trial_is_not_heard_again_and_frees_its_slot(make: Make) -> None:
    executor = make("endless")
    executor.start(task(number=1))
    heard = executor.poll(30.0)
    assert all(number == 1 and isinstance(message, Progress) for number, message in heard)
    assert heard
    executor.stop(1)
    assert executor.poll(0.2) == []
    executor.start(task(number=2))
    assert {number for number, _ in executor.poll(30.0)} == {2}
    executor.stop(2)
    executor.stop(2)
    executor.stop(99)


def test_a_trial_that_is_asked_to_leave_says_that_it_left_and_frees_its_slot(make: Make) -> None:
    executor = make("leaves")
    for number in (1, 2):  # the second was not asked yet
        executor.start(task(number=number))
        heard = [message for _, message in executor.poll(30.0)]
        executor.ask_to_leave(99)
        heard += [message for _, message in executor.poll(30.0)]
        assert all(isinstance(message, Progress) for message in heard)
        executor.ask_to_leave(number)
        while not isinstance(heard[-1], Ending):
            heard += [message for _, message in executor.poll(30.0)]
        assert (heard[-1].outcome, heard[-1].cause) == ("cancelled", "left")
        assert heard[-1].measurements["num_steps"] == sum(isinstance(message, Progress) for message in heard)
    executor.ask_to_leave(2)
    assert executor.poll(0.0) == []


def test_polling_nothing_returns_at_once(make: Make) -> None:
    executor = make("complete")
    begun = time.monotonic()
    assert executor.poll(5.0) == []
    assert time.monotonic() - begun < 1.0


def test_no_more_trials_than_slots(make: Make) -> None:
    executor = make("endless")
    assert executor.slots == 1
    executor.start(task(number=1))
    with pytest.raises(RuntimeError, match="running"):
        executor.start(task(number=2))


def test_an_interrupted_trial_in_this_process_has_ended() -> None:
    executor = _inline("interrupted")
    executor.start(task())
    assert executor.poll(1.0) == [(12, executor_runners.evaluation(1))]
    with pytest.raises(KeyboardInterrupt):
        executor.poll(1.0)
    ((_, ending),) = executor.poll(1.0)
    assert isinstance(ending, Ending)
    assert ending.outcome == "crashed"
    assert executor.poll(1.0) == []


def test_the_machine_is_described(make: Make) -> None:
    assert make("complete").describe()["device"] == "class of cpu"


def test_closing_stops_what_runs_and_may_be_repeated(make: Make) -> None:
    with make("endless") as executor:
        executor.start(task())
        assert executor.poll(30.0)
    executor.close()
    assert executor.poll(0.1) == []
