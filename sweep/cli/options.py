"""The arguments and options that several commands share, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

RUNS = Path("runs")

StudyFile = Annotated[str, typer.Argument(help="A shipped study (see `sweep list`) or the path of a .toml file.")]
BaseStudy = Annotated[str | None, typer.Argument(help="Start from the base configuration of this study.")]
RecordedStudy = Annotated[
    str,
    typer.Argument(help="A study's file, its folder, its name under the root, a database URL, or SWEEP_STORE#NAME."),
]
AnyRecords = Annotated[
    str,
    typer.Argument(
        help="A study's file, its folder, its name under the root, a database URL, SWEEP_STORE#NAME, or a file of "
        "another program (with --columns)."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a configuration key, or a key of the study; repeatable."),
]
ConfigSets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a configuration key; repeatable.")
]
Root = Annotated[Path, typer.Option(help="Folder of all studies.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Plugin = Annotated[Path | None, typer.Option(help="Python file that registers models or data sets.")]
SlurmFile = Annotated[
    Path | None, typer.Option("--slurm", metavar="FILE", help="TOML file: sbatch settings of each trial's job.")
]
RayAddress = Annotated[
    str | None,
    typer.Option("--address", help="Ray cluster: host:port, or auto; default: a cluster on this machine."),
]
Columns = Annotated[
    Path | None,
    typer.Option("--columns", help="Map (TOML) of the columns, where the records are a file of another program."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
