"""The CPU time of a process and of what it has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from inferometer.agent.hardware.process_tree import ProcessTree

BUSY = """
import os, time
if os.fork() == 0:
    pass
while time.process_time() < 0.5:
    pass
print("done", flush=True)
time.sleep(600) if os.getppid() == {parent} else os._exit(0)
"""


def test_what_a_process_has_started_counts_and_this_process_does_not() -> None:
    command = [sys.executable, "-c", BUSY.format(parent=os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            first = started.stdout.readline()
            tree = ProcessTree(os.getpid())
            assert (first, started.stdout.readline()) == ("done\n", "done\n")
            assert len(tree) >= 1
            before_s = tree.cpu_s()
            assert before_s >= 0.4
            began_s = time.process_time()
            while time.process_time() < began_s + 0.3:
                pass
            assert tree.cpu_s() - before_s < 0.2
        finally:
            started.kill()
    assert tree.cpu_s() >= before_s


def test_a_process_that_is_gone_has_no_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    tree = ProcessTree(ended.pid)
    assert len(tree) == 0
    assert tree.cpu_s() == 0
