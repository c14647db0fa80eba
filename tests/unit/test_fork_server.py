"""What the fork server makes ready for its workers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, resource, sys
from testbed.train import fork_server, preload

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

fork_server._leave_room_for_names()
if (pid := os.fork()) == 0:
    for number in range(100):
        sys.intern(f"warm {number}")
    before = faults()
    for number in range(2_000):
        sys.intern(f"name of a worker {number}")
    print(faults() - before, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_the_table_of_names_does_not_grow_in_a_worker() -> None:
    """Which writes some thousand pages."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 300
