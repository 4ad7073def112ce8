"""Which columns of a foreign file may be the batch size, the accuracy and the rest; a draft of the map from them."""

import re
from collections.abc import Iterator

from sweep.foreign.column_map import OPEN, find_units, join_or
from sweep.foreign.foreign_table import ForeignTable

_NOT_FACT = ("parameter", "metric", "")
# By quantity: how its columns are usually named, after separators and case are removed.
_USUAL_NAMES = {
    "batch.global": r"(global|total|effective|train)?batchsize|batch|bs",
    "batch.micro": r"(micro|perdevice|perdevicetrain|local)batchsize|micro(batch)?",
    "batch.accumulation": r"(gradient|grad)?accum(ulation)?(steps)?|accumulategradbatches",
    "distributed.world_size": r"worldsize|(num|n)(gpus|devices|processes)",
    "optimizer.lr": r"(optimizer|base|initial|peak|max)?(lr|learningrate)",
    "optimizer.weight_decay": r"(optimizer)?(wd|weightdecay)",
    "optimizer.momentum": r"(optimizer)?momentum",
    "optimizer.name": r"opt(im|imizer)?(name)?",
    "model.name": r"model(name)?|arch(itecture)?|backbone",
    "data.name": r"data(set)?(name)?",
    "budget.epochs": r"(max|num|n)?epochs",
    "budget.steps": r"(max|num|total)?(train)?steps",
    "seed": r"(random|global|manual)?seed",
    "device": r"device(name)?|gpu(name|type)?|hardware|accelerator",
    "val_accuracy": r"(best|final|eval|val|valid|validation)*(acc|accuracy|top1)(top1|val|valid|pct|percent)*|value",
    "val_loss": r"(eval|val|valid|validation)loss",
    "test_accuracy": r"test(acc|accuracy|top1)",
    "train_seconds": r"(train(ing)?)?(time|runtime|seconds|minutes|hours|duration)(s|sec|seconds|min|minutes|h|hours)?",
    "peak_memory_bytes": r"(peak|max)?(gpu|cuda)?(mem|memory|vram)(allocated|peak|used)?(b|bytes|mb|mib|gb|gib)?",
}
_HEAD = (
    '# The map of the columns: what each column of the file is. Replace every "?", delete what does not apply, and\n'
    "# add what is missing; every configuration key and metric may stand on the left.\n"
)
# A name does not tell which of the two a batch size is, so neither line is active.
_BATCH_KEYS = {
    "batch.global": "keep this line if it is the samples of one optimizer step, over all devices",
    "batch.micro": "keep this line if it is the samples of one pass on one device",
}


def find_candidates(table: ForeignTable) -> dict[str, tuple[str, ...]]:
    """By quantity the columns whose names are usual for it; nothing else is looked at."""
    names = [name for name in map(str, table.cells.columns) if table.roles[name] in _NOT_FACT or _is_fact_of_use(name)]
    found = {}
    for target, pattern in _USUAL_NAMES.items():
        fitting = tuple(name for name in names if re.fullmatch(pattern, _simplify(name)))
        if fitting:
            found[target] = fitting
    return found


def looks_like_seed(name: str) -> bool:
    """Whether a column has a usual name of seeds."""
    return re.fullmatch(_USUAL_NAMES["seed"], _simplify(name)) is not None


def _is_fact_of_use(name: str) -> bool:
    return _simplify(name) in {"durationseconds", "device", "gpu", "gpuname", "seed"}


def _simplify(name: str) -> str:
    # without the part of the run that a program puts before a name
    short = re.sub(
        r"^(params|metrics|tags|hparams|config|summary|values|user_attrs|parameters|training)[._/]", "", name
    )
    return re.sub(r"[^a-z0-9]", "", short.rpartition("/")[2].lower())


def write_draft(table: ForeignTable, study: str = "") -> str:
    """A map in TOML with a line for each candidate: active for the first column that fits, open where its unit is to be
    stated."""
    lines = [_HEAD, *([f'study = "{_escape(study)}"', ""] if study else []), "[columns]"]
    found = find_candidates(table)
    if "val_accuracy" not in found:
        lines.append(f'# required: "val_accuracy" = {{ column = "{OPEN}", unit = "{OPEN}" }}')
    for target, names in found.items():
        lines += _write_batch_lines(names) if target == "batch.global" else _write_lines(target, names)
    lines += ["", "[constants]  # what is equal in all runs and in no column", '# "model.name" = "resnet18"']
    lines += ['# device = "NVIDIA A100"  # without a device, times and memory are not compared']
    return "\n".join(lines) + "\n"


def _write_batch_lines(names: tuple[str, ...]) -> list[str]:
    return [f'# "{key}" = "{_escape(name)}"  # {text}' for name in names for key, text in _BATCH_KEYS.items()]


def _write_lines(target: str, names: tuple[str, ...]) -> Iterator[str]:
    units = tuple(find_units(target))
    for place, name in enumerate(names):
        value = f'{{ column = "{_escape(name)}", unit = "{OPEN}" }}' if units else f'"{_escape(name)}"'
        remarks = [f"unit: {join_or(units)}"] if units else []
        if len(names) > 1:
            remarks.append(f"{len(names)} columns may be it: keep one")
        line = f'"{target}" = {value}' + (f"  # {'; '.join(remarks)}" if remarks else "")
        yield line if place == 0 else f"# {line}"


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def ask_for_map(table: ForeignTable) -> str:
    """The message where no map is given: what may be what, and how a map is made."""
    found = find_candidates(table)
    parts = [f"{target}: {' or '.join(map(repr, names))}" for target, names in found.items()]
    parts = parts or ["no column has a usual name"]
    return (
        f"{table.place}: {len(table.cells):,} runs of {table.program}; what its columns mean, and in which units, is "
        f"not guessed. Candidates: {'; '.join(parts)}. Write the map with "
        f"`sweep columns {table.place} --draft map.toml`, complete it, and give it with --columns map.toml."
    )
