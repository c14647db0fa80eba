"""Reports of a guest look at its processes, and keep no file of one that has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testbed.vm.rank_states import RankStates

RANK = "import sys; open('/proc/self/comm', 'w').write(sys.argv[1]); print(flush=True); sys.stdin.read()"


def rank(name: str) -> subprocess.Popen[str]:
    """A process of that name, until its input ends."""
    started = subprocess.Popen(
        [sys.executable, "-c", RANK, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    started.stdout.readline()
    return started


def kept(pid: int) -> bool:
    """Whether a file of that process is open here."""
    links = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return any(link.startswith(f"/proc/{pid}/") for link in links)


def test_workers_are_seen_and_of_those_that_ended_no_file_stays_open() -> None:
    """Of a job whose workers were replaced some 400 times a guest had no descriptor left."""
    states = RankStates()
    for turn in range(2):
        ranks = [rank(f"rank {number} of {turn}") for number in range(2)]
        seen = [line.partition(":")[0] for line in states.say()]
        assert {"rank 0 of " + str(turn), "rank 1 of " + str(turn)} <= {*seen}
        assert all(kept(one.pid) for one in ranks)
        for one in ranks:
            one.communicate("")
        assert not [line for line in states.say() if line.endswith(f"of {turn}")]
        assert not any(kept(one.pid) for one in ranks)
    states.close()
