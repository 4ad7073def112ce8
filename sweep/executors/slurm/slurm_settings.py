"""The sbatch settings of each trial: a TOML file apart from the studies, which do not depend on a cluster."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import Field, ValidationError, field_validator

from sweep.config.durations import Seconds
from sweep.config.errors import InputError, explain_refusal
from sweep.config.fields import Section
from sweep.config.study_file import read_toml

Line = Annotated[str, Field(pattern=r"^[^\n\r]+$", max_length=1000)]
# Set by the executor itself; all other options of sbatch may be given under [sbatch].
_OWN = {"array", "job-name", "signal", "requeue", "no-requeue", "ntasks", "ntasks-per-node"}
_OWN |= {"output", "error", "open-mode"}


@final
class SlurmSettings(Section):
    """One job runs one attempt at one trial. Sizes are as ``sbatch`` takes them."""

    jobs: Annotated[int, Field(ge=1, le=10_000)] = Field(4, description="in the queue or running at once")
    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None
    time: Seconds = Field(3600.0, description="of one job; a longer trial is resumed in the next")
    notice: Seconds = Field(120.0, description="before the end of that time, to write a checkpoint")
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 1
    cpus_per_task: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="cores of a node")
    mem: Line | None = None
    setup: Annotated[tuple[Line, ...], Field(strict=False)] = Field((), description="shell lines before the trial")
    sbatch: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], Line | int | Literal[True]] = Field(
        default_factory=dict, description="further options of sbatch, by their long names"
    )
    cluster: Literal["slurm", "local"] = Field("slurm", description="local: jobs are processes here, to try a study")

    @field_validator("sbatch")
    @classmethod
    def _not_our_own(cls, options: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OWN & options.keys()):
            raise ValueError(f"{taken[0]} is set by the executor itself; leave it out")
        return options

    def nodes_for(self, world_size: int, device: str) -> int:
        """How many of a job's nodes a trial of ``world_size`` ranks uses: as few as have the GPUs; on CPUs, as many as
        share the ranks evenly.

        Raises:
            InputError: the ranks cannot be shared evenly.
        """
        on_gpu = device != "cpu" and self.gpus_per_node
        most = self.gpus_per_node if on_gpu else math.ceil(world_size / self.nodes)
        for nodes in range(1, self.nodes + 1):
            if world_size % nodes == 0 and world_size // nodes <= most:
                return nodes
        raise InputError(
            f"distributed.world_size = {world_size}: {self.nodes} nodes of {most} each cannot share the ranks evenly; "
            "choose another number of ranks, or other nodes in the file of --slurm."
        )

    def parameters(self, job_name: str) -> dict[str, Any]:
        """As submitit's executor for Slurm takes them."""
        known = {name: getattr(self, name) for name in ("partition", "account", "qos", "constraint", "mem")}
        # srun does not inherit this option of sbatch
        cpus = [f"--cpus-per-task={self.cpus_per_task}"] if self.cpus_per_task else []
        return {name: value for name, value in known.items() if value is not None} | {
            "job_name": job_name,
            "time": math.ceil(self.time / 60),
            "signal_delay_s": math.ceil(self.notice),
            "nodes": self.nodes,
            "ntasks_per_node": 1,
            "gpus_per_node": self.gpus_per_node or None,
            "cpus_per_task": self.cpus_per_task,
            "setup": list(self.setup),
            "array_parallelism": self.jobs,
            "srun_args": [*cpus, "--kill-on-bad-exit=1"],
            "stderr_to_stdout": True,
            "wckey": None,
            # the study retries lost attempts; without this option Slurm would too
            "additional_parameters": {"no-requeue": True, **self.sbatch},
        }


def read_settings(path: Path | None) -> SlurmSettings:
    """The settings in the TOML file ``path``; the defaults without one.

    Raises:
        InputError: naming the file, the key, the value, the rule and the remedy.
    """
    if path is None:
        return SlurmSettings()
    table = read_toml(path)
    try:
        settings = SlurmSettings.model_validate(table)
    except ValidationError as error:
        raise InputError(explain_refusal(error, str(path), SlurmSettings.model_fields)) from None
    if settings.notice >= settings.time:
        raise InputError(
            f"{path}: notice = {settings.notice:g} s: it must be less than time = {settings.time:g} s; lower it."
        )
    return settings
