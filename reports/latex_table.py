"""The answer as a LaTeX table: the tuned batch sizes with their intervals, and the statement in the caption."""

from collections.abc import Iterable, Iterator

from reports.texts import CURVE_HEADS, describe_batch_answer
from sweep.analysis.answer import BatchAnswer
from sweep.config.metrics import format_count

_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
        "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", '"': "''", "–": "--", "±": r"$\pm$", "×": r"$\times$", "≤": r"$\leq$",
        "≥": r"$\geq$", "·": r"\textperiodcentered{}", "−": "$-$", "\u00a0": "~", "[": "{[}", "]": "{]}",
    }
)  # fmt: skip


def escape_latex(text: str) -> str:
    """``text`` in one line, printed by LaTeX as it is; a "?" in place of control characters."""
    shown = "".join(each if each.isprintable() or each == "\u00a0" else "?" for each in " ".join(text.split()))
    return shown.translate(_ESCAPES)


def write_latex_table(found: BatchAnswer, study: str, images: str) -> Iterator[str]:
    """The lines of a ``table`` environment that requires the package booktabs: a row for each tuned batch size, the
    recommended one in bold. ``images`` is the sentence about the validation images and what intervals cover."""
    texts = describe_batch_answer(found)
    statement, certainty = texts.statements[0]
    columns = [place for place, _ in enumerate(CURVE_HEADS) if any(_shown(row[place]) for row in texts.rows)]
    yield r"% requires \usepackage{booktabs}"
    yield r"\begin{table}"
    yield r"\centering"
    certain = f" Certainty: {certainty}." if certainty else ""
    counted = format_count(len(texts.rows), "tuned batch size")
    kinds = "with 95 % intervals; without loss: against the best batch size of the model"
    caption = f"{statement}{certain} Study {study}: {counted}, {kinds}. {images}"
    yield rf"\caption{{{escape_latex(caption)}}}"
    yield rf"\label{{tab:{_make_label(study)}}}"
    yield rf"\begin{{tabular}}{{{''.join('l' if place == 0 else 'r' for place in columns)}}}"
    yield r"\toprule"
    yield _join_cells(escape_latex(CURVE_HEADS[place]) for place in columns)
    yield r"\midrule"
    for point, row in zip(found.curve, texts.rows, strict=True):
        is_named = (point.model, point.batch) == (found.model, found.named.global_batch_size)
        cells = (escape_latex(_cell(place, row[place])) for place in columns)
        yield _join_cells(rf"\textbf{{{cell}}}" if is_named else cell for cell in cells)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _cell(place: int, cell: tuple[str, str]) -> str:
    # the notes of batch size and learning rate are numbers of trials, which only the records explain
    value, note = cell
    if CURVE_HEADS[place] in ("Effective batch size", "Learning rate"):
        return value
    return f"{value} ({note})" if value and note else value or note


def _shown(cell: tuple[str, str]) -> bool:
    return any(part not in ("", "–") for part in cell)


def _make_label(study: str) -> str:
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in study)


def _join_cells(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
