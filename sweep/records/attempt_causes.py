"""Why an attempt ended other than by the end of its trial: the values of the column ``cause`` of the attempts.

A signal is recorded by its name. Attempts lost to machine faults are retried; a fault of the trial would only recur.
"""




LEFT = "left"  # preempted on request, see the record
STALLED = "stalled"
FORKSERVER_LOST = "forkserver_lost"
ACTOR_LOST = "actor_lost"  # the process of a Ray cluster that held the device
NODE_LOST = "node_lost"  # its machine
JOB_LOST = "job_lost"  # the job of a Slurm cluster, by its limits or its administrators
DATA_WORKER_LOST = "data_worker_lost"
DEVICE_FAILED = "device_failed"
COLLECTIVE_FAILED = "collective_failed"
DEVICE_FULL = "device_full"  # by other programs, before anything of the trial was on the device
CROWDED = "crowded"  # out of memory next to other trials, where one trial alone would have fitted

# A process gets SIGBUS when a mapped file or shared memory has vanished. Signals that it causes itself (SIGSEGV,
# SIGABRT, SIGFPE, SIGILL) are its own fault.
_EXTERNAL = ("KILL", "TERM", "HUP", "INT", "QUIT", "USR1", "USR2", "XCPU", "PWR", "BUS")
_LOST = (STALLED, FORKSERVER_LOST, ACTOR_LOST, NODE_LOST, JOB_LOST, DATA_WORKER_LOST)
_FAILED = (DEVICE_FAILED, DEVICE_FULL, COLLECTIVE_FAILED, CROWDED)
FAULTS_OF_THE_MACHINE = frozenset((*_LOST, *_FAILED, *(f"SIG{name}" for name in _EXTERNAL)))
