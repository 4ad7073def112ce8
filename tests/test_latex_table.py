"""The LaTeX table of the answer: its structure, its escapes and its numbers."""

import contextlib
import json
import re
from pathlib import Path

import pytest
from records_factory import add_seeds, add_trials, make_spec, make_store

from reports.texts import escape_latex
from sweep.cli.app import run_app


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "s").mkdir()
    with contextlib.closing(make_store(tmp_path / "s" / "study.sqlite", make_spec())) as store:
        add_trials(store, ["complete"] * 7)
        add_seeds(store, of=6, first=10, gaps=(-0.02, 0.0, 0.02))
        add_seeds(store, of=2, first=13)
    return tmp_path


def test_the_table_has_a_row_for_each_tuned_batch_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["recommend", "s", "--root", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["batch_size"]
    assert run_app(["recommend", "s", "--root", str(root), "--latex"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    opened, closed = re.findall(r"\\begin\{(\w+)\}", text), re.findall(r"\\end\{(\w+)\}", text)
    assert opened == closed[::-1] == ["table", "tabular"]
    rows = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    num_columns = len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1])
    assert all(row.endswith(r" \\") and len(re.findall(r"(?<!\\)&", row)) == num_columns - 1 for row in rows)
    assert len(rows) == len(found["curve"])
    for row, point in zip(rows, found["curve"], strict=True):
        cells = [re.sub(r"\\textbf\{(.*)\}", r"\1", cell.strip()) for cell in row.removesuffix(r"\\").split(" & ")]
        assert cells[:2] == [escape_latex(point["model"]), str(point["batch"])]
        accuracy = point["accuracy"]
        assert cells[2].startswith(rf"{100 * accuracy['median']:.2f} \%")
        assert f"{point['learning_rate']:.3g}" in cells
        is_named = point["batch"] == found["named"]["global_batch_size"] and point["model"] == found["model"]
        assert ("textbf" in row) == is_named
    assert escape_latex(found["statements"][0]["text"]) in text
    specials = re.sub(r"\\[%&#_${}]|\$\\?\S*?\$", "", "\n".join(lines[3:]))
    assert not re.search(r"[%#_$]", re.sub(r"\\label\{.*\}", "", specials))


def test_every_special_character_is_escaped() -> None:
    assert escape_latex("a_b & 5 % #1 {x} $y$") == r"a\_b \& 5 \% \#1 \{x\} \$y\$"
    assert escape_latex("\\input{a}~^") == r"\textbackslash{}input\{a\}\textasciitilde{}\textasciicircum{}"
    assert escape_latex("1–2\n±3 [4]\x07") == r"1--2 $\pm$3 {[}4{]}?"


def test_two_formats_at_once_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["recommend", "s", "--root", str(root), "--latex", "--json"]) == 2
    assert "choose one of them" in capsys.readouterr().err
