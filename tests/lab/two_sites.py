"""Two sites for tests that no lab has made: network namespaces of the test's own, joined by a veth pair as it comes.

A torchrun in each, as on two machines and without any right; a site may have a clock of its own (a time namespace).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from processes import descendants

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29500
NAMES = ("paris", "warsaw")

NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""What runs behind this has no more rights than any user."""

_HOLD = [sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"]


@dataclass
class Sites:
    """Namespaces by the processes that hold them."""

    holders: Sequence[int]

    def inside(self, site: int, *words: str) -> list[str]:
        """A command that runs in a site."""
        return ["nsenter", f"--net=/proc/{self.holders[site]}/ns/net", *words]

    def torchrun(
        self, site: int, directory: Path, *words: str, per_site: int = 1, ahead_s: int = 0
    ) -> subprocess.Popen[str]:
        """torchrun of one site, which says all on stderr; its monotonic clock is so many seconds ahead."""
        clock = ["unshare", "--time", "--fork", "--kill-child", f"--monotonic={ahead_s}"] if ahead_s else []
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={per_site}"),
            *(f"--node-rank={site}", f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}", "-m", "testbed", "wan", *words),
        ]
        return subprocess.Popen(
            self.inside(site, *clock, *NO_RIGHTS, *command),
            cwd=directory,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


@contextlib.contextmanager
def two_sites() -> Iterator[Sites]:
    """Both namespaces with their addresses, for as long as the body runs."""
    with contextlib.ExitStack() as stack:
        holders = []
        for _ in NAMES:
            holder = subprocess.Popen(
                ["unshare", "--net", *_HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(_let_go, holder)
            assert holder.stdout is not None
            assert holder.stdout.readline() == "here\n"
            holders.append(holder.pid)
        sites = Sites(holders)
        _ip(sites, 0, f"link add {NAMES[1]} type veth peer name {NAMES[0]} netns {holders[1]}")
        for site, address in enumerate(ADDRESSES):
            device = NAMES[1 - site]
            _ip(sites, site, f"address add {address}/24 dev {device}")
            for name in ("lo", device):
                _ip(sites, site, f"link set {name} up")
        yield sites


def _ip(sites: Sites, site: int, words: str) -> None:
    subprocess.run(sites.inside(site, "ip", *words.split()), check=True, capture_output=True, timeout=30)


def _let_go(holder: subprocess.Popen[str]) -> None:
    holder.communicate(timeout=30)


@contextlib.contextmanager
def ending(processes: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """Whatever happens in the body, these and all that they have started are gone afterwards."""
    try:
        yield
    finally:
        for process in processes:
            for pid in {process.pid, *descendants(process.pid)} if process.poll() is None else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def said(processes: Sequence[subprocess.Popen[str]], deadline_s: float = 300) -> list[str]:
    """All that each has said by its end."""
    until = time.monotonic() + deadline_s
    return [process.communicate(timeout=max(1.0, until - time.monotonic()))[0] for process in processes]
