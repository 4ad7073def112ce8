"""A study as `sweep run` runs it: forecast, events on the display, report, summary."""

import contextlib
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reports import write_report
from reports.labels import describe_price, format_value
from sweep.analysis.costs import apply_times
from sweep.analysis.shortfalls import count_missing_objectives, explain_confirmation, explain_no_complete_trial
from sweep.analysis.statistics import read_numbers
from sweep.cli.app import print_answer, print_lines
from sweep.cli.check import format_data, print_advice, show_inspection
from sweep.cli.display import Display, describe_time
from sweep.config.commands import StudyCommands, find_study_commands
from sweep.config.errors import hide_credentials
from sweep.config.metrics import METRICS, format_count
from sweep.config.study import Price, StudySpec
from sweep.config.trial import flatten_config
from sweep.records.frames import Frames
from sweep.records.loading import load_frames
from sweep.records.records import TrialRecord
from sweep.records.store import list_waiting
from sweep.search.seeds import count_confirmations, find_front, list_confirmations
from sweep.search.session import Options, Session, open_session
from sweep.search.shutdown import shutdown_on_signals
from sweep.search.study_forecast import Forecast
from sweep.search.tuner import Stopped


def preview_study(spec: StudySpec, options: Options, *, as_json: bool) -> int:
    """Prints the forecast of a study; returns the exit code."""
    with show_inspection() as show, open_session(spec, options, preview=True, on_progress=show) as session:
        forecast = session.forecast()
    data = session.data
    if data:
        print_advice(spec, _find_commands(session).check(), data.num_train)
    lines = [*_describe_source(session), *format_forecast(forecast, spec.price)]
    document = forecast.document() | _price_forecast(forecast, spec.price) | {"data": data and asdict(data)}
    print_answer(document, lines, as_json=as_json)
    return 0


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """How a run ended: its exit code, the document of ``sweep run --json`` (None where it was interrupted, which leaves
    no report), the display, which still has to show the end, and the place of the records."""

    exit_code: int
    document: dict[str, Any] | None
    display: Display
    place: str


def carry_out_study(spec: StudySpec, options: Options) -> EndedRun:
    """Runs a study and writes its report."""
    began = time.monotonic()
    with show_inspection() as show, open_session(spec, options, on_progress=show) as session:
        stopped, place = None, session.records_place
        commands = _find_commands(session)
        records = session.store.trial_records(spec.name)
        display = Display(spec, records, commands.examine(), options.resumed_by, recommend=commands.recommend())
        display.predict_left = session.predict_left
        print_lines([*_describe_source(session), *_opening_lines(session)], err=True)
        if session.data:
            print_advice(spec, commands.check(), session.data.num_train)
        with display, shutdown_on_signals() as shutdown, contextlib.closing(session.run(shutdown)) as events:
            for event in events:
                display.show(event)
                stopped = event if isinstance(event, Stopped) else None
        if stopped and shutdown.cause:
            return EndedRun(exit_code=shutdown.exit_code, document=None, display=display, place=place)
        if not stopped:
            session.forecaster.estimate_breakdowns(session.store)
        records = session.store.trial_records(spec.name)
        report = Path(write_report(place, out=session.folder))
        document = _summarize(session, records, stopped) | {"report": str(report)}
    seconds, price = time.monotonic() - began, spec.price
    document |= {"seconds": seconds, "price": price and price.of(seconds), "currency": spec.currency}
    is_failure = stopped is not None and stopped.is_failure
    is_done = any(record.outcome == "complete" for record in records) and not is_failure
    return EndedRun(exit_code=0 if is_done else 1, document=document, display=display, place=place)


def _describe_source(session: Session) -> list[str]:
    script = session.spec.script
    if script is None:
        return format_data(session.data) if session.data else []
    return [f"script: {' '.join(script.command)}", f"  in {script.folder}, reports {script.metric}"]


def _find_commands(session: Session) -> StudyCommands:
    place, origin = hide_credentials(session.records_place), session.options.origin
    return find_study_commands(session.spec.name, place, origin, origin.plugin)


def _opening_lines(session: Session) -> list[str]:
    lines = format_forecast(session.forecast(), session.spec.price)
    if num_again := len(session.repeated_crashes.to_repeat):
        lines.append(f"tried again: {format_count(num_again, 'trial')} that failed in the same way")
    if session.options.executor.is_packed:
        alone = "; time and memory come from solo probes" if session.spec.script is None else ""
        lines.append(f"packed: {session.executor.slots} concurrent trials{alone}")
    return lines


def _correct_times(frames: Frames, records: list[TrialRecord]) -> list[TrialRecord]:
    """``records`` with the times that the page shows, which probes and other trials correct."""
    trials, corrected = apply_times(frames.trials, frames.probes), []
    numbers, speeds = trials["number"].tolist(), [name for name in METRICS if METRICS[name].is_speed]
    times = {name: dict(zip(numbers, read_numbers(trials, name).tolist(), strict=True)) for name in speeds}
    for record in records:
        own = {name: times[name][record.number] for name in times.keys() & record.measurements.keys()}
        corrected.append(replace(record, measurements=record.measurements | own))
    return corrected


def _summarize(session: Session, records: list[TrialRecord], stopped: Stopped | None) -> dict[str, Any]:
    """How the trials ended, the front, and what the study asked for and its records lack."""
    spec, frames = session.spec, load_frames(session.records_place)
    reused = [record for record in records if record.reused_from]
    front = [
        {"number": record.number}
        | {"config": {path: flatten_config(record.config)[path] for path in spec.space}}
        | {name: record.measurements[name] for name in spec.objectives}
        for record in find_front(_correct_times(frames, records), spec.objectives, spec.quality)
    ]
    is_cut_short = stopped is not None and bool(list_confirmations(frames, records, spec))
    reason = explain_confirmation(frames, stopped.reason if stopped and is_cut_short else "")
    return {
        "study": spec.name,
        "num_trials": len(records),
        "outcomes": dict(Counter(record.outcome or "interrupted" for record in records)),
        "num_reused": len(reused),
        "reused_seconds": sum(record.measurements.get("total_seconds", 0.0) for record in reused),
        "confirmed": count_confirmations(records) | {"seeds_at_most": spec.confirm.seeds},
        "front": front,
        "missing_objectives": count_missing_objectives(frames),
        "confirmation_shortfall": reason or None,
        "no_complete_trial": explain_no_complete_trial(frames) or None,
        "stopped": stopped.reason if stopped else None,
        "num_enqueued": len(list_waiting(session.store.database, spec.name)),
    }


def _price_forecast(forecast: Forecast, price: Price | None) -> dict[str, Any]:
    names = ("expected_total_seconds", "expected_total_seconds_low", "expected_total_seconds_high")
    amounts = {
        name.replace("seconds", "price"): price and price.of(seconds) if seconds is not None else None
        for name in names
        for seconds in [getattr(forecast, name)]
    }
    return amounts | {"currency": price.currency if price else ""}


def format_forecast(forecast: Forecast, price: Price | None = None) -> list[str]:
    """The forecast of a study, for people; with the price of its time where that of an hour is known."""
    if not forecast.num_trials and not forecast.num_confirm:
        return ["forecast: no trial is left to train"]
    middle, low, high = (
        forecast.expected_total_seconds,
        forecast.expected_total_seconds_low,
        forecast.expected_total_seconds_high,
    )
    takes = "the time is unknown until a trial has ended"
    if middle is not None and low is not None and high is not None:
        takes = f"{_count_trainings(forecast)}: {describe_time(low, middle, high)}"
    if forecast.share_guessed:
        takes += f"; guessed for {forecast.share_guessed:.0%} of the trainings, which are unlike what was probed"
    if forecast.is_cut_by_timeout:
        takes += "; the timeout may end it earlier"
    lines = [f"forecast: {takes}"]
    amount, lowest, highest, currency = _price_forecast(forecast, price).values()
    if amount is not None:
        lines.append(f"forecast: price about {describe_price(amount, lowest, highest, currency)}")
    bounds = (forecast.peak_memory_bytes_low, forecast.peak_memory_bytes_high)
    span = " to ".join(format_value("bytes", bound) for bound in bounds)
    refused = forecast.num_not_fitting
    verdict = f"about {refused} proposals will not fit" if refused else "all fit"
    limit = format_value("bytes", forecast.memory_limit_bytes)
    fit = f"is unknown; the limit is {limit}" if None in bounds else f"{span}; {verdict} into {limit}"
    return [*lines, f"forecast: peak memory {fit}"]


def _count_trainings(forecast: Forecast) -> str:
    confirming = f"up to about {forecast.num_confirm}"
    if not forecast.num_trials:
        return f"{confirming} trainings with fresh seeds"
    trials = format_count(forecast.num_trials, "trial")
    if forecast.num_reused:
        trials += f", {forecast.num_reused} of them reused from records"
    return f"{trials}, and {confirming} to confirm" if forecast.num_confirm else trials
