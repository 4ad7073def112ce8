"""``python storm_starts.py COUNT '{"spec": ..., "options": ...}' FOLDER``: the study is started so often at once.

What each says goes to ``FOLDER/PID.txt``. Prints ``PID CODE`` for each that has ended, and stays while one runs.
"""

import json
import os
import sys
from pathlib import Path

import storm_study

from sweep.training.processes import die_with_parent

num_starts, about, folder = int(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
die_with_parent(os.getppid())  # as each of them with this one
starter_pid = os.getpid()
reader, writer = os.pipe()
for _ in range(num_starts):
    if os.fork() == 0:
        die_with_parent(starter_pid)
        os.close(writer)
        told = os.open(folder / f"{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(told, 1)
        os.dup2(told, 2)
        os.read(reader, 1)  # until the last one is there, and all go at once
        code = 1
        try:
            code = storm_study.main(about)
        finally:
            os._exit(code)
os.close(writer)
for _ in range(num_starts):
    pid, status = os.wait()
    print(pid, os.waitstatus_to_exitcode(status), flush=True)
