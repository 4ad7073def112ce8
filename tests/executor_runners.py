"""What the executors' tests run in place of a training; each is named as ``executor_runners:<name>``.

A trial's ``config.seed`` carries the one number that a runner may need.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from sweep.records.messages import Ending, Evaluation, Message, Progress, TrialTask
from sweep.training import processes as supervisor_link
from sweep.training.processes import SUPERVISOR_LINK


def evaluation(step: int) -> Evaluation:
    return Evaluation(
        step=step, epoch=step / 10, samples=step * 64, train_seconds=0.5 * step, train_loss=1 / (step + 1),
        val_loss=float("inf") if step == 3 else 0.25, val_accuracy=0.1 * step, learning_rate=0.1, global_batch_size=64,
    )  # fmt: skip


def chosen(task: TrialTask) -> Iterator[Message]:
    """The runner that the test has named in a file, see ``executor_contract.py``."""
    yield from resolve_name(Path(os.environ["EXECUTOR_RUNNER_FILE"]).read_text())(task)


def holders(_task: TrialTask) -> Iterator[Message]:
    """Tells the processes that it hangs on: itself, the forkserver, and who started that."""
    server = os.getppid()
    starter = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
    yield Progress(step=os.getpid(), num_steps=server, epoch=float(starter), images_per_second=0.0)
    _sleep_for_ever()


def complete(_task: TrialTask) -> Iterator[Message]:
    for step in range(1, 6):
        yield Progress(step=step, num_steps=5, epoch=step / 10, images_per_second=100.0)
        yield evaluation(step)
    yield Ending(
        outcome="complete", measurements={"val_accuracy": 0.5, "num_steps": 5}, device="CPU", quality_flags=("noisy",)
    )


def diverged(_task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)
    yield Ending(outcome="diverged", measurements={"train_seconds": 1.5}, error='line one\nline two: «ü» "quoted"')


def out_of_memory(_task: TrialTask) -> Iterator[Message]:
    yield Ending(outcome="out_of_memory", error="CUDA out of memory. Tried to allocate 2.00 GiB")


def no_ending(_task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)


def raises(_task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)
    raise KeyError("the reason")


def exits(_task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)
    sys.exit(7)


def endless(task: TrialTask) -> Iterator[Message]:
    step = 0
    while True:
        step += 1
        yield Progress(step=step, num_steps=10**9, epoch=0.0, images_per_second=float(task.number))
        time.sleep(0.01)


def echo_task(task: TrialTask) -> Iterator[Message]:
    yield Ending(
        outcome="complete", measurements={"seed": task.config.seed, "threads": task.threads or 0}, device=task.device
    )


def echo_environment(task: TrialTask) -> Iterator[Message]:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    environment: dict[str, Any] = {name: os.environ.get(name) for name in names}
    environment |= {"pid": os.getpid(), "ppid": os.getppid(), "pgid": os.getpgid(0)}
    environment["main"] = sys.modules["__main__"].__name__
    environment["sigint_ignored"] = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    environment["fds"] = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())
    yield Ending(outcome="complete", device=task.device, environment=environment)


def interrupted(_task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)
    raise KeyboardInterrupt


def uses_gpu(task: TrialTask) -> Iterator[Message]:
    """Counts the devices that it sees, then asks one for more memory than there is."""
    import torch

    yield Progress(
        step=torch.cuda.device_count(), num_steps=1, epoch=float(torch.ones(4, device=task.device).sum()),
        images_per_second=0.0,
    )  # fmt: skip
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=task.device)
    except torch.OutOfMemoryError:
        yield Ending(outcome="out_of_memory", device=torch.cuda.get_device_name())


def sigkill(_task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)
    print("these were the last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(_task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)
    ctypes.string_at(0)


def exit_code(task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)
    print("unflushed words")
    os._exit(task.config.seed)


def silent_after_ending(_task: TrialTask) -> Iterator[Message]:
    yield Ending(outcome="complete", measurements={"num_steps": 3})
    os.kill(os.getpid(), signal.SIGKILL)


def stopped(_task: TrialTask) -> Iterator[Message]:
    yield evaluation(1)
    os.kill(os.getpid(), signal.SIGSTOP)
    yield Ending(outcome="complete")


def hung(_task: TrialTask) -> Iterator[Message]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield evaluation(1)
    _sleep_for_ever()


def burst(_task: TrialTask) -> Iterator[Message]:
    for step in range(20_000):
        yield Progress(step=step, num_steps=20_000, epoch=0.0, images_per_second=1.0)
    yield Ending(outcome="complete", error="x" * 1_000_000)


def nonsense(_task: TrialTask) -> Iterator[Message]:
    for fd in range(3, 64):
        try:
            os.write(fd, b'{"kind": "rumour"}\n')
        except OSError:
            continue
    while True:
        yield evaluation(1)
        time.sleep(0.05)


def _sleep_for_ever() -> None:
    time.sleep(3600)


def with_workers(_task: TrialTask) -> Iterator[Message]:
    """Like a DataLoader: a worker by fork, which has one in turn, and a thread; their process ids are told."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def worker() -> None:
        grandchild = os.fork()
        if grandchild == 0:
            _sleep_for_ever()
        sender.send(grandchild)
        _sleep_for_ever()

    process = context.Process(target=worker, daemon=False)
    process.start()
    yield Progress(step=os.getpid(), num_steps=process.pid or 0, epoch=float(receiver.recv()), images_per_second=0.0)
    threading.Thread(target=_sleep_for_ever, daemon=True).start()
    _sleep_for_ever()


def ends_with_workers(_task: TrialTask) -> Iterator[Message]:
    """Ends well and leaves two workers behind, one of which ignores SIGTERM."""
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _sleep_for_ever()
        pids.append(pid)
    yield Progress(step=os.getpid(), num_steps=pids[0], epoch=float(pids[1]), images_per_second=0.0)
    yield Ending(outcome="complete")


def threads(task: TrialTask) -> Iterator[Message]:
    """Multiplies matrices; the CPU seconds per second show how many cores did it."""
    import torch

    torch.set_num_threads(task.threads or 1)
    left = torch.ones(600, 600)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < 0.7:
        left = (left @ left).clamp(0, 1)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - begun_cpu
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    yield Ending(outcome="complete", measurements={"cores": cpu_seconds / seconds, "num_threads": num_threads})


def describe(device: str, threads: int | None) -> dict[str, Any]:
    return {"device": f"class of {device}", "threads": threads, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}


def describe_badly(_device: str, _threads: int | None) -> dict[str, Any]:
    raise OSError("no such machine")


def takes_two_gibibytes(_task: TrialTask) -> Iterator[Message]:
    try:
        taken = bytearray(2 << 30)
    except MemoryError:
        yield Ending(outcome="out_of_memory")
        return
    yield Ending(outcome="complete", measurements={"num_steps": len(taken)})


def leaves(_task: TrialTask) -> Iterator[Message]:
    """Runs until it is told to stop."""
    step = 0
    while not SUPERVISOR_LINK.is_preempted:
        step += 1
        yield Progress(step=step, num_steps=10**9, epoch=0.0, images_per_second=1.0)
        time.sleep(0.01)
    yield Ending(outcome="cancelled", measurements={"num_steps": step}, cause="left")


def beats(_task: TrialTask) -> Iterator[Message]:
    """Says 20,000 times at once that it lives."""
    supervisor_link.HEARTBEAT_SECONDS = 0.0
    for _ in range(20_000):
        SUPERVISOR_LINK.send_heartbeat()
    Path(os.environ["BEATS_FILE"]).touch()
    yield Ending(outcome="complete")


def describe_one_oddly(_device: str, _threads: int | None) -> dict[str, Any]:
    """Whoever asks first has another device than all others."""
    try:
        Path(os.environ["ODD_FILE"]).touch(exist_ok=False)
    except FileExistsError:
        return {"device": "usual"}
    return {"device": "odd"}
