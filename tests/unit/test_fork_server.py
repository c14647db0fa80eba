"""What the fork server makes ready for its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from testbed.spec import load_workload
from testbed.train import reference_process
from testbed.train.protocol import TrainReference

WORKLOADS = Path(__file__).parents[2] / "workloads"

PROGRAM = """
import os, resource, sys
from testbed.train import fork_server, preload

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def name_all(what, numbers):
    before = faults()
    for number in numbers:
        sys.intern(f"{what} {number}")
    return faults() - before

def in_child(work):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, str(work()).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 100))

def names_until_it_grows():
    name_all("warm", range(100))
    starts = range(0, 1_000_000, 500)
    return next((start for start in starts if name_all("filler", range(start, start + 500)) > 300), 0)

if (grows := in_child(names_until_it_grows)) == 0:
    sys.exit("it cannot be seen to grow")
name_all("filler", range(grows - 500))  # now it is nearly full
if sys.argv[1] == "room":
    fork_server._leave_room_for_names()
print(in_child(lambda: name_all("warm", range(100)) * 0 + name_all("name of a worker", range(2_000))))
"""


@pytest.mark.parametrize("room", [True, False])
def test_the_table_of_names_grows_in_a_worker_where_no_room_was_left(room: bool) -> None:
    """Which has it write some thousand pages."""
    words = [sys.executable, "-c", PROGRAM, "room" if room else "none"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if "it cannot be seen to grow" in done.stderr:
        pytest.skip("this kernel hands out memory in large pages, by which a table's growth is not seen")
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) < 300) is room


def test_a_reference_that_says_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process runs the job's code, which could say anything in its place: that is no reason to end the run."""

    def lie(_request: TrainReference, _corpus: object, answer: Connection) -> None:
        answer.send({"losses": [1.0]})
        os._exit(0)

    monkeypatch.setattr(reference_process, "_train", lie)
    request = TrainReference(load_workload(WORKLOADS / "tiny-gpt-pp4.yaml"), 1, deadline_s=60.0)
    outcome = reference_process.trained_in_own_process(request, None)  # type: ignore[arg-type]
    assert outcome.refused == "the process that trained the same without a pipeline lies: {'losses': [1.0]}"
