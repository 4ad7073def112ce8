"""The shipped studies: one TOML file each."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def shipped_studies() -> dict[str, Path]:
    """Path of each shipped study by its name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.toml")) if path.stem != "template"}


def template() -> str:
    """The commented study that ``sweep list template`` prints."""
    return (_FOLDER / "template.toml").read_text(encoding="utf-8")
