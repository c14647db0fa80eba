"""One rank's process: joins its container and the process group, then runs what the launcher sends."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from testbed.lab.host import become_real_time
from testbed.train.data import Corpus
from testbed.train.engine import Engine
from testbed.train.pacing import needed_spin_s
from testbed.train.protocol import Done, Failed, Go, Prepare, Ready, Stop, WorldSpec

WARMUP_ROUNDS = 4
_WARMUP_TAG = 1 << 28
_PR_SET_NAME, _PR_SET_TIMERSLACK = 15, 29


def work(rank: int, world: WorldSpec, launcher: Connection, corpus: Corpus) -> int:
    """Serve the launcher until it says Stop; returns the exit status. Anything that goes wrong is reported first."""
    log = (Path(world.logs) / f"rank{rank}.log").open("a", buffering=1)
    os.dup2(log.fileno(), sys.stdout.fileno())
    os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        # a sleep otherwise ends up to 50 us late
        _prctl(_PR_SET_TIMERSLACK, 1)
        if world.real_time:  # before the process group is joined: gloo's threads inherit it
            become_real_time()
        _show(rank, "joining")
        _join(rank, world)
        launcher.send(Ready(rank))
        _serve(rank, launcher, corpus)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, the launcher must hear of it
        traceback.print_exc()
        launcher.send(Failed(rank, f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _prctl(option: int, value: object) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value)


def _show(rank: int, doing: str) -> None:
    """Let ps and top, and whoever looks for the culprit of a hang, see what this process does (15 characters)."""
    _prctl(_PR_SET_NAME, f"rank {rank} {doing}".encode()[:15])


def _join(rank: int, world: WorldSpec) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = world.places[rank].interface
    dist.init_process_group(
        "gloo",
        init_method=f"file://{world.store}",
        rank=rank,
        world_size=len(world.places),
        timeout=timedelta(seconds=world.timeout_s),
    )
    peers = [b if a == rank else a for a, b in world.neighbours if rank in (a, b)]
    outgoing = torch.zeros(world.warmup_bytes, dtype=torch.uint8)
    for round_ in range(WARMUP_ROUNDS):
        tag = _WARMUP_TAG + round_
        incoming = [torch.empty_like(outgoing) for _ in peers]
        works = [dist.irecv(buffer, src=peer, tag=tag) for peer, buffer in zip(peers, incoming, strict=True)]
        works += [dist.isend(outgoing, dst=peer, tag=tag) for peer in peers]
        for pending in works:
            assert pending is not None
            pending.wait()


def _serve(rank: int, launcher: Connection, corpus: Corpus) -> None:
    engine: Engine | None = None
    spin_s = needed_spin_s()
    gc.disable()  # a collection in the middle of an action would look like slow computation
    while True:
        match launcher.recv():
            case Prepare(job):
                engine = None
                _show(rank, "prepare")
                gc.collect()
                engine = Engine(job, rank, corpus, spin_s)
                engine.prepare()
                launcher.send(Ready(rank))
            case Go(iteration, start_s):
                if engine is None:
                    raise RuntimeError("told to go before a job was prepared")
                _show(rank, f"it {iteration}")
                launcher.send(Done(engine.iterate(iteration, start_s)))
            case Stop():
                return
            case other:
                raise TypeError(f"not a message for a worker: {other!r}")
