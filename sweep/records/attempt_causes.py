"""What ended an attempt other than its trial's own end, a word each: the column ``cause`` of the attempts.

A signal goes by its name. A fault of the machine is tried again; the trial's own would only happen again.
"""

LEFT = "left"  # it was asked to; the record says by what
STALLED = "stalled"
FORKSERVER_LOST = "forkserver_lost"
ACTOR_LOST = "actor_lost"  # the process of a Ray cluster that held the device
NODE_LOST = "node_lost"  # its machine
CLUSTER_LOST = "cluster_lost"  # the connection to all of them
JOB_LOST = "job_lost"  # the job of a Slurm cluster, by its limits or its administrators
DATA_WORKER_LOST = "data_worker_lost"
DEVICE_FAILED = "device_failed"
COLLECTIVE_FAILED = "collective_failed"
CROWDED = "crowded"  # memory ran out beside other trials, where alone there would have been enough

# SIGBUS is what a mapped file or shared memory gives that is gone. Other signals that a process brings upon itself
# (SIGSEGV, SIGABRT, SIGFPE, SIGILL) are its own fault.
_SENT_BY_OTHERS = (
    "SIGKILL",
    "SIGTERM",
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGXCPU",
    "SIGPWR",
    "SIGBUS",
)
FAULTS_OF_THE_MACHINE = frozenset(
    {
        STALLED,
        FORKSERVER_LOST,
        ACTOR_LOST,
        NODE_LOST,
        CLUSTER_LOST,
        JOB_LOST,
        DATA_WORKER_LOST,
        DEVICE_FAILED,
        COLLECTIVE_FAILED,
        CROWDED,
        *_SENT_BY_OTHERS,
    }
)
