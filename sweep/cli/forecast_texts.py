"""A forecast in words."""

from typing import TYPE_CHECKING

from sweep.cli.formats import format_bytes, format_seconds

if TYPE_CHECKING:
    from sweep.search.forecast.study_forecast import Forecast


def forecast_lines(forecast: "Forecast") -> list[str]:
    """What ``sweep run`` says before it starts."""
    trials = f"{forecast.num_trials} trials"
    if forecast.num_reused:
        trials += f", {forecast.num_reused} of them taken from records"
    if forecast.num_confirm:
        trials += f", and at most {forecast.num_confirm} to confirm"
    return [f"forecast: {trials}: {_time(forecast)}", f"forecast: {_memory(forecast)}"]


def _time(forecast: "Forecast") -> str:
    middle, low, high = (
        forecast.expected_total_seconds,
        forecast.expected_total_seconds_low,
        forecast.expected_total_seconds_high,
    )
    if middle is None or low is None or high is None:
        return "how long is not known, for nothing could be probed"
    # what the sampler proposes, what is confirmed and what ends early is not known beforehand
    text = f"about {format_seconds(middle)}, between {format_seconds(low)} and {format_seconds(high)} with 90 %"
    return f"{text}; the timeout may cut it short" if forecast.is_cut_by_timeout else text


def _memory(forecast: "Forecast") -> str:
    low, high = forecast.peak_memory_bytes_low, forecast.peak_memory_bytes_high
    limit = format_bytes(forecast.memory_limit_bytes)
    if low is None or high is None:
        return f"peak memory not known; the limit is {limit}"
    span = format_bytes(low) if low == high else f"{format_bytes(low)} to {format_bytes(high)}"
    refused = forecast.num_not_fitting
    verdict = f"about {refused} proposals will not fit" if refused else "all fit"
    return f"peak memory {span}; {verdict} into {limit}"
