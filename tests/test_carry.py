"""What is carried to a machine without network: which packages, and what is said of the others."""

from pathlib import Path

import pytest

from benchmarks.gpu import carry
from sweep.config.errors import InputError


def test_what_is_surely_there_is_left_with_its_dependencies_and_what_is_old_or_missing_is_taken() -> None:
    there = {"torch": "2.11.0", "torchvision": "0.26.0", "matplotlib": "3.11.0", "pandas": "2.1.0", "scipy": ""}
    needs = {need.requirement.name.lower(): need for need in carry.list_needs(there, "3.12")}
    assert needs["matplotlib"].is_surely_there
    assert "contourpy" not in needs  # matplotlib's own
    assert not needs["pandas"].is_surely_there  # too old
    assert not needs["scipy"].is_surely_there  # of an unknown version
    assert needs["optuna"].there is None
    assert {"alembic", "mako", "pydantic-core"} <= {name.replace("_", "-") for name in needs}
    assert all(need.version for name, need in needs.items() if name not in {"torch", "torchvision"})


def test_the_machine_for_which_the_day_is_planned_has_torch() -> None:
    there = carry.read_packages(carry.PACKAGES)
    assert {"torch", "torchvision", "numpy", "pytest"} <= there.keys()
    needs = {need.requirement.name: need for need in carry.list_needs(there, "3.12")}
    assert needs["torch"].is_surely_there


def test_without_torch_there_is_no_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "packages.txt").write_text("numpy==2.4.0  # alone\n")
    folder = tmp_path / "carried"
    assert carry.main([str(folder), "--packages", str(tmp_path / "packages.txt")]) == 2
    assert "torch is not on the machine" in capsys.readouterr().err
    assert not folder.exists()
    assert carry.main([]) == 2


def test_the_report_adds_the_checkout_and_refuses_too_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/some.whl").write_bytes(bytes(3 * 2**20))
    assert carry._report(tmp_path, []) == 0
    assert "3.00 MiB  wheels/some.whl" in capsys.readouterr().out
    monkeypatch.setattr(carry, "LIMIT_BYTES", 2**20)
    assert carry._report(tmp_path, []) == 1


def test_what_is_missing_here_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(carry, "ARCHIVE", tmp_path / "absent.tar.xz")
    monkeypatch.setattr(carry, "_TESTS", ("no-such-package>=1", "pytest>=99"))
    assert carry.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert "no-such-package>=1: missing" in said
    assert "pytest>=99: 9" in said
    assert "absent.tar.xz" in said


def test_a_package_without_a_pinned_version_is_refused(tmp_path: Path) -> None:
    need = carry.Need(carry.Requirement("some-package"), "", None)
    with pytest.raises(InputError, match=r"constraints\.txt"):
        carry._download([need], tmp_path, "3.12")
