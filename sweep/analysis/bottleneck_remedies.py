"""What to change about a training with a bottleneck, by its configuration."""

from collections.abc import Mapping

from sweep.config.trial_config import Scalar

# What each bottleneck means.
BOTTLENECK_MEANINGS = {
    "data_bound": "steps on a batch that was ready took much less time: the data loader is the bottleneck",
    "launch_bound": "most of a step takes the same time for a smaller micro batch: launching operations, not computing",
    "compute_bound": "the device is busy with the arithmetic itself",
    "thrashing": "the device's memory was so full that its allocator freed its cache again and again",
}


def suggest_remedy(bottleneck: str, values: Mapping[str, Scalar], num_processors: int) -> str:
    """What to change about a configuration of dotted ``values`` on a machine with that many processors."""
    if bottleneck == "data_bound":
        return _for_data(values, num_processors)
    known = {"launch_bound": _for_launching, "compute_bound": _for_computing, "thrashing": _for_memory}
    return known[bottleneck](values) if bottleneck in known else ""


def _for_data(values: Mapping[str, Scalar], num_processors: int) -> str:
    workers = int(values.get("data.workers") or 0)
    if values.get("data.placement") == "host":
        more = f"raise data.workers ({workers} of {num_processors} processors)" if workers < num_processors else ""
        ahead = f"raise data.prefetch ({values['data.prefetch']})" if workers and "data.prefetch" in values else ""
        return " or ".join(filter(None, ("data.placement = 'device' where the images fit", more, ahead)))
    augment = values.get("data.augment")
    if augment not in (None, "none"):
        return f"a cheaper data.augment than {augment!r}, or data.placement = 'host' with data.workers up to " + str(
            num_processors
        )
    return f"images were streamed, or other processes used the host: data.workers up to {num_processors}"


def _for_launching(values: Mapping[str, Scalar]) -> str:
    micro, accumulation = values.get("batch.micro"), values.get("batch.accumulation")
    parts = [f"raise batch.micro ({micro})"]
    if isinstance(accumulation, int) and accumulation > 1:
        parts = [f"raise batch.micro ({micro}) and lower batch.accumulation ({accumulation})"]
    if not values.get("precision.compile"):
        parts.append("precision.compile = true")
    parts.append("precision.cuda_graphs = true on a GPU")
    return ", or ".join(parts)


def _for_computing(values: Mapping[str, Scalar]) -> str:
    parts = []
    if values.get("precision.dtype") in ("fp32", "fp64"):
        parts.append("precision.dtype = 'bf16' where the device is fast at it")
    parts += [f"{key} = true" for key in ("precision.channels_last", "precision.compile") if not values.get(key)]
    return "nothing to fix; faster: " + ", ".join([*parts, "a smaller model"])


def _for_memory(values: Mapping[str, Scalar]) -> str:
    parts = [f"lower batch.micro ({values.get('batch.micro')}) and raise batch.accumulation"]
    if not values.get("precision.checkpointing"):
        parts.append("precision.checkpointing = true")
    return ", or ".join(parts)
