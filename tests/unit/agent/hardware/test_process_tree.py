"""The processes that share a measurement."""

from __future__ import annotations

import os
import subprocess
import sys

from inferometer.agent.hardware.conditions import process_tree

# each writes its line in one piece
PARENT = 'import os, sys; os.fork(); os.write(1, b"%d\\n" % os.getpid()); sys.stdin.read()'


def test_a_tree_has_all_that_a_process_has_started_but_not_this_one() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        two = {int(started.stdout.readline()), int(started.stdout.readline())}
        assert set(process_tree(started.pid)) == two
        tree = process_tree(os.getpid())
        assert two <= set(tree)
        assert os.getpid() not in tree


def test_a_process_that_is_gone_has_no_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert process_tree(ended.pid) == ()
