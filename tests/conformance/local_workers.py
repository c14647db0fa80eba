"""Workers on this machine, without containers: what conformance tests train with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.train.launcher import Launcher
from testbed.train.protocol import Place, WorldSpec


@contextmanager
def local_workers(ranks: int, directory: Path) -> Iterator[Loop]:
    """So many workers, connected over the loopback interface and ready for jobs; `directory` gets their logs."""
    with Launcher(ranks) as workers:
        world = WorldSpec(
            places=tuple(Place(None, "lo") for _ in range(ranks)),
            store=str(directory / "store"),
            timeout_s=60,
            warmup_bytes=1000,
            neighbours=tuple((rank, rank + 1) for rank in range(ranks - 1)),
            logs=str(directory),
        )
        workers.imported()
        loop = Loop([workers])
        loop.start([world], Deadline(120, "a test"))
        yield loop
