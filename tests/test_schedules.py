"""Learning-rate schedules against their closed forms; durations in every unit."""

import math
from collections.abc import Callable

import pytest

from sweep.config.errors import InputError
from sweep.config.scaling import grade_warmup
from sweep.config.sections import Durations, RulesSection, ScheduleSection, parse_durations
from sweep.config.trial import build_config, flatten_config
from sweep.training.schedules import SCHEDULES, RateSchedule, Span

SPAN = Span(steps=50, steps_per_epoch=10, samples_per_epoch=640)


def section(**values: object) -> ScheduleSection:
    return build_config({f"schedule.{key}": value for key, value in values.items()}, "test").schedule


def factors(schedule: ScheduleSection, span: Span = SPAN) -> list[float]:
    return [RateSchedule(schedule, span).factor(step) for step in range(span.steps)]


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize(("name", "form"), [
    ("constant", lambda _share, _final: 1.0),
    ("cosine", lambda share, final: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * share))),
    ("linear", lambda share, final: 1 - share + share * final),
])  # fmt: skip
def test_schedules_have_their_closed_form(name: str, form: Callable[[float, float], float], final: float) -> None:
    found = factors(section(name=name, warmup=0.2, final=final))
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert found[10:] == pytest.approx([form((step - 10) / 40, final) for step in range(10, 50)])
    assert min(found) > 0


def test_triangular_has_its_peak_where_asked_and_no_other_warm_up() -> None:
    found = factors(section(name="triangular", peak=0.3, final=0.2, warmup=0.1))
    assert found[:15] == pytest.approx([(step + 1) / 15 for step in range(15)])
    assert found[15:] == pytest.approx([1 - 0.8 * (step - 15) / 35 for step in range(15, 50)])


@pytest.mark.parametrize(("warmup", "share"), [(0.1, 0.4), (0.0, 1.0), ("10 steps", 0.2)])
def test_wsd_is_stable_between_its_warm_up_and_its_decay(warmup: object, share: float) -> None:
    found = factors(section(name="wsd", warmup=warmup, decay_share=share, final=0.1))
    num_warmup = {0.1: 5, 0.0: 0}.get(warmup, 10) if isinstance(warmup, float) else 10
    start = round(50 * (1 - share))
    assert found[num_warmup:start] == [1.0] * (start - num_warmup)
    decay = [1 - 0.9 * math.sqrt((step - start) / (50 - start)) for step in range(start, 50)]
    assert found[start:] == pytest.approx(decay)
    assert found[:num_warmup] == pytest.approx([(step + 1) / num_warmup for step in range(num_warmup)])


def test_a_warm_up_that_reaches_into_the_decay_of_wsd_shortens_it() -> None:
    found = factors(section(name="wsd", warmup=0.9, decay_share=0.5))
    assert found[44] == 1.0
    assert found[45:] == pytest.approx([1 - math.sqrt(step / 5) for step in range(5)])


@pytest.mark.parametrize("milestones", ["0.4, 0.8", "20, 40 steps", "2, 4 epochs", "1280, 2560 samples"])
def test_step_falls_at_milestones_in_any_unit(milestones: str) -> None:
    found = factors(section(name="step", warmup=0.1, milestones=milestones, gamma=0.2))
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[5:20] == [1.0] * 15
    assert found[20:40] == pytest.approx([0.2] * 20)
    assert found[40:] == pytest.approx([0.04] * 10)


@pytest.mark.parametrize("warmup", [0.2, "0.2", "10 steps", "1 epoch", "640 samples"])
def test_warm_up_in_any_unit(warmup: object) -> None:
    assert factors(section(warmup=warmup)) == factors(section(warmup=0.2))


def test_a_text_and_its_parts_are_one_configuration() -> None:
    text, parts = section(warmup="2 epochs"), section(warmup=2.0, warmup_unit="epochs")
    assert text == parts
    flat = flatten_config(build_config({"schedule.warmup": "2 epochs"}, "test"))
    assert (flat["schedule.warmup"], flat["schedule.warmup_unit"]) == (2.0, "epochs")
    assert build_config(flat, "again").schedule == text


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_warm_up_may_take_everything_or_nothing(name: str) -> None:
    span = Span(10, 5, 100)
    for warmup, factor in ((1.0, 1.0), ("30 steps", 10 / 30)) if name != "triangular" else ():
        assert RateSchedule(section(name=name, warmup=warmup, milestones="1.0"), span).factor(9) == factor
    assert RateSchedule(section(name=name, warmup=0.0, peak=0.0), span).factor(0) == 1.0
    assert RateSchedule(section(name=name), Span(1, 1, 100)).factor(0) == 1.0


def test_a_graded_warm_up_grows_with_the_logarithm_of_the_batch() -> None:
    for batch, graded in ((64, 0.0), (256, 0.0), (512, 0.0), (1024, 2.0), (2048, 4.0), (4096, 6.0), (16384, 6.0)):
        assert grade_warmup(6.0, RulesSection(warmup="graded"), batch) == pytest.approx(graded)
        assert grade_warmup(6.0, RulesSection(), batch) == 6.0


def test_between_steps_and_at_the_end_the_factor_stays_in_range() -> None:
    # a budget of seconds has places between nominal steps
    schedule = section(name="linear", warmup="10 steps")
    assert RateSchedule(schedule, SPAN).factor(4.5) == pytest.approx(0.55)
    assert RateSchedule(schedule, SPAN).factor(9.5) == 1.0
    assert RateSchedule(schedule, SPAN).factor(60) == 0.0


@pytest.mark.parametrize(("text", "durations"), [
    ("0.5", Durations((0.5,), "fraction")), ("0.5, 0.75", Durations((0.5, 0.75), "fraction")),
    ("0.5 0.75", Durations((0.5, 0.75), "fraction")), ("30,60 epochs", Durations((30.0, 60.0), "epochs")),
    (" 1 Epoch ", Durations((1.0,), "epochs")), ("1e4 samples", Durations((1e4,), "samples")),
])  # fmt: skip
def test_durations(text: str, durations: Durations) -> None:
    assert parse_durations(text) == durations


@pytest.mark.parametrize(("values", "message"), [
    ({"warmup": 1.5}, r"warmup: 1.5 is no fraction .*'1.5 steps'"),
    ({"warmup": -0.1}, r"schedule.warmup: .*greater than or equal to 0"),
    ({"warmup": "soon"}, r"'soon' is no duration"), ({"warmup": "5 miles"}, r"unknown unit 'miles'"),
    ({"warmup": "1, 2 epochs"}, r"give one duration"),
    ({"warmup": "5 epochs", "warmup_unit": "steps"}, r"give one unit"),
    ({"milestones": "60, 30 epochs"}, r"schedule.milestones: .*rising order"),
    ({"milestones": "30, 60"}, r"60 is no fraction"), ({"name": "cosin"}, r"Did you mean 'cosine'"),
])  # fmt: skip
def test_bad_durations_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        section(**values)
