"""``sweep check``: what is wrong with a study before it runs, and what its records say against that."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweep.cli.arguments import load_plugin, parse_sets
from sweep.cli.data_lines import format_data, show_inspection
from sweep.cli.options import RUNS, AsJson, Plugin, Root, Sets, StudyFile
from sweep.cli.output import print_answer, print_lines
from sweep.config.advice import Advice, find_data_pitfalls, find_pitfalls
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study

if TYPE_CHECKING:
    from sweep.analysis.findings import Finding


def check(
    study: StudyFile,
    sets: Sets = None,
    root: Root = RUNS,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Count the images of a study and report its known pitfalls. Each has its reason and what to do instead; nothing is
    trained, and earlier records of the study under the root add what was measured."""
    from sweep.training.data.study_data import check_study_data  # with NumPy and Pillow

    load_plugin(plugin)
    spec = load_study(study, parse_sets(sets or []))
    with show_inspection() as show:
        data = check_study_data(spec, show)
    found = [*find_pitfalls(spec), *_advise_on_objectives(spec), *find_data_pitfalls(spec, data.num_train)]
    measured = load_settled_findings(spec, root) if found else {}
    advice = [_document(item, measured.get(item.finding)) for item in found]
    lines = [*_list_advice(spec, found, measured), *format_data(data)]
    print_answer({"study": spec.name, "data": data.document(), "advice": advice}, lines, as_json=as_json)
    return 0


def _list_advice(spec: StudySpec, found: Sequence[Advice], measured: dict[str, "Finding"]) -> list[str]:
    count = "one piece" if len(found) == 1 else f"{len(found)} pieces"
    head = f"{spec.name}: {count} of advice" if found else f"{spec.name}: no known pitfall"
    return [head, *format_advice(found, measured)]


def print_advice(spec: StudySpec, command: str, num_train: int | None) -> None:
    """Prints one line on standard error for each known pitfall of the study, which has ``num_train`` training images,
    before it runs; ``command`` gives their reasons."""
    found = [*find_pitfalls(spec), *find_data_pitfalls(spec, num_train)]
    print_lines((f"advice on {item.key}: {item.statement}" for item in found), err=True)
    if found:
        print_lines([f"`{command}` gives the reasons and the remedies"], err=True)


def _advise_on_objectives(spec: StudySpec) -> list[Advice]:
    # no refusal: a study may be checked on another machine than the one that runs it
    if not any(METRICS[name].requires for name in spec.objectives):
        return []
    from sweep.executors.measurability import find_unmeasurable, list_measurable, suggest_remedy
    from sweep.executors.table import ExecutorSettings  # with psutil

    here = ExecutorSettings()
    return [
        Advice(
            "objective_not_measured",
            "objectives",
            f"{name} cannot be measured on this machine, and `sweep run` refuses the study here.",
            f"It requires {requirement.text}.",
            f"{suggest_remedy([requirement])}, or choose from {', '.join(list_measurable(spec, here))}",
        )
        for name, requirement in find_unmeasurable(spec, here).items()
    ]


def load_settled_findings(spec: StudySpec, root: Path) -> dict[str, "Finding"]:
    """The settled findings on the study's own records by name; empty where it has none."""
    folder = root / spec.name
    if not (folder / "study.sqlite").exists():
        return {}
    from sweep.analysis.findings import UNSETTLED, evaluate_claims
    from sweep.records.frames.frames import load_frames

    found = evaluate_claims(load_frames(folder, spec.name, evaluations=True))
    return {item.name: item for item in found if item.verdict not in UNSETTLED}


def format_advice(found: Sequence[Advice], measured: dict[str, "Finding"]) -> list[str]:
    """The advice for people, with what the records say for or against it."""
    lines = []
    for item in found:
        lines += [f"  {item.key}: {item.statement}", f"    why: {item.reason}", f"    instead: {item.remedy}"]
        if item.finding in measured:
            lines.append(f"    measured here: {_measured(measured[item.finding])}")
    return lines


def _measured(finding: "Finding") -> str:
    from reports.labels import format_effect

    effect = format_effect(finding.unit, finding.effect, finding.low, finding.high)
    return f"{finding.verdict}: {finding.statement} {effect}, n = {finding.n}."


def _document(item: Advice, measured: "Finding | None") -> dict[str, Any]:
    if measured is None:
        return {**item._asdict(), "finding": None}
    from sweep.analysis.findings import findings_document

    return {**item._asdict(), "finding": findings_document([measured])[0]}
