"""One rank's process: joins its container and the process group, then runs what the launcher sends."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from testbed.lab.confinement import confine, own_files
from testbed.lab.host_settings import become_real_time, priorities
from testbed.lab.namespaces import attach
from testbed.plan.framing import WARMUP_ROUNDS
from testbed.train import protocol
from testbed.train.buffers import Buffers, KeptBuffers
from testbed.train.connections import segments_sent_again
from testbed.train.data import Corpus
from testbed.train.gloo_all_reduce import GlooGroups
from testbed.train.held_states import HeldStates
from testbed.train.idle_threads import seldom_awake
from testbed.train.pacing import needed_spin_s, now_s
from testbed.train.peer_store import TCP, connected
from testbed.train.rank_witness import Accounts
from testbed.train.schedule_run import RankProcess, ScheduleRun
from testbed.train.streams import Streams, interface_list
from testbed.train.training_state import TrainingState

_WARMUP_TAG = 1 << 24
"""Times the most streams there may be, it still is a tag."""
_PR_SET_NAME = 15
_SOONEST_S = 1e-6
"""A timer of 0 s is none."""


def become_worker(
    rank: int,
    world: protocol.WorldSpec,
    fork_server: Connection,
    worker_fds: Sequence[int],
    corpus: Corpus,
    longest_spin_s: float,
) -> NoReturn:
    """Make the calling process, just forked into its container's PID namespace, the worker of `rank`.

    It enters the container's other namespaces, and ends as its work ends.

    `worker_fds` are the launcher's connections to all ranks. Those of other ranks are closed, and the fork
    server's own. `longest_spin_s`: of the ends of its sleeps.
    """
    launcher = Connection(worker_fds[rank])
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
        faulthandler.enable()  # a crash inside of a library says in the log where it came from
        faulthandler.register(protocol.SHOW_THREADS)
        fork_server.close()
        for other, fd in enumerate(worker_fds):
            if other != rank:
                os.close(fd)
        container = world.places[rank].container_pid
        if container is not None:
            _enter(container, rank, world, launcher)
        status = work(rank, world, launcher, corpus, longest_spin_s)
    except BaseException as error:  # noqa: BLE001 - nothing may escape a fork, and the launcher must hear of it
        launcher.send(protocol.Failed(rank, f"cannot enter its container: {error!r}"))
    finally:
        os._exit(status)


def _enter(container: int, rank: int, world: protocol.WorldSpec, launcher: Connection) -> None:
    """Enter a container, and have the rights there that a worker needs."""
    for group in world.places[rank].groups:
        Path(group).write_text("0", encoding="ascii")
    if world.confinement is None:
        attach(container)
        return
    log = os.open(world.log_file(rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    _log_to(log)
    attach(container)
    own_files()
    confine(world.confinement, launcher.fileno(), real_time=world.real_time)


def work(rank: int, world: protocol.WorldSpec, launcher: Connection, corpus: Corpus, longest_spin_s: float) -> int:
    """Serve the launcher until it says Stop; returns the exit status. Anything that goes wrong is reported first."""
    another: protocol.WorldSpec | None = world
    try:
        if world.cores:  # gloo's threads too: they are part of what a rank does
            os.sched_setaffinity(0, {world.cores[rank]})
        if world.real_time:  # before the process group is joined: gloo's threads inherit it
            become_real_time()
        while another is not None:
            world = another
            if world.confinement is None:
                _log_to(os.open(world.log_file(rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644))
            _show(world.called(rank), "joining")
            _join(rank, world)
            launcher.send(protocol.Ready(rank))
            if not _serve(rank, launcher, corpus, world, longest_spin_s):
                return 0
            gc.collect()  # what is left of its trainings holds connections
            dist.destroy_process_group()
            launcher.send(protocol.Ready(rank))
            another = _next_world(launcher)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, the launcher must hear of it
        traceback.print_exc()
        launcher.send(protocol.Failed(rank, f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _next_world(launcher: Connection) -> protocol.WorldSpec | None:
    """What a worker that has left its process group is to join; None: nothing more."""
    match launcher.recv():
        case protocol.Join(world):
            if world.confinement is not None:
                _log_to(reduction.recv_handle(launcher))
            return world
        case protocol.Stop():
            return None
        case other:
            raise TypeError(f"not a message for a worker that has left: {other!r}")


def _log_to(log: int) -> None:
    """Have whatever is said go to the file of this descriptor, which is closed."""
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)


def _show(rank: int, doing: str) -> None:
    """Let ps and top, and whoever looks for the culprit of a hang, see what this process does (15 characters)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, f"rank {rank} {doing}".encode()[:15])


def _join(rank: int, world: protocol.WorldSpec) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = interface_list(world.places[rank].interface, world.streams)
    with _joining(world)():
        dist.init_process_group(
            "gloo",
            **_where_they_meet(world.store),
            rank=rank,
            world_size=len(world.places),
            timeout=timedelta(seconds=world.timeout_s),
        )
    group = dist.group.WORLD
    assert group is not None  # it has just been joined
    streams = Streams(group, world.streams)
    peers = [b if a == rank else a for a, b in world.neighbours if rank in (a, b)]
    memory = Buffers(1, world.warmup_bytes, world.warmup_bytes, torch.uint8)
    message = memory.take()  # all are sent from there, and received into it: nobody reads them
    for round_ in range(WARMUP_ROUNDS):
        tag = _WARMUP_TAG + round_
        works = [streams.receive(message, peer, tag) for peer in peers]
        works += [streams.send(message, peer, tag) for peer in peers]
        for pending in works:
            pending.wait()


def _joining(world: protocol.WorldSpec) -> Callable[[], AbstractContextManager[None]]:
    """What groups are joined in."""
    return seldom_awake if world.seldom_looks else nullcontext


def _where_they_meet(store: str) -> dict[str, Any]:
    return {"store": connected(store)} if store.startswith(TCP) else {"init_method": store}


def _serve(rank: int, launcher: Connection, corpus: Corpus, world: protocol.WorldSpec, longest_spin_s: float) -> bool:
    """Do what the launcher says, in one process group; returns whether to leave it for another one."""
    run: ScheduleRun | None = None
    held: HeldStates | None = None
    spin_s = min(longest_spin_s, needed_spin_s())
    accounts, groups = Accounts(active=world.witness), GlooGroups(world.timeout_s, _joining(world))
    at = priorities(real_time=world.real_time)
    process = RankProcess(spin_s, at, accounts, KeptBuffers())
    gc.disable()  # a collection in the middle of an action would look like slow computation
    while True:
        message = launcher.recv()
        match message:
            case protocol.Prepare(task, saved):
                if run is not None:
                    run.state.close()
                    run = None
                _show(world.called(rank), "prepare")
                gc.collect()
                state = TrainingState(task, rank, corpus, at.messaging, groups)
                if isinstance(saved, int):
                    _remembered(held, message).unpack(state, saved)
                elif saved is not None:
                    state.load(Path(saved))
                run = ScheduleRun(state, task.begins_with, process)
                run.prepare()
                launcher.send(protocol.Ready(rank))
            case protocol.SwapSchedule(timed):
                run = _prepared(run, message).followed_by(timed)
                launcher.send(protocol.Ready(rank))
            case protocol.PostReceives(iteration):
                _prepared(run, message).post_receives(iteration)
                launcher.send(protocol.Ready(rank))
            case protocol.SaveState(directory, fails):
                _fail(rank, fails)
                _prepared(run, message).state.save(Path(directory))
                launcher.send(protocol.Ready(rank))
            case protocol.Remember():
                held = _memory(rank, launcher, message, world)
                launcher.send(protocol.Ready(rank))
            case protocol.PostStates(messages, version):
                _remembered(held, message).post(messages, version)
                launcher.send(protocol.Ready(rank))
            case protocol.ExchangeStates(fails=fails):
                _fail(rank, fails)
                packed = _prepared(run, message).state if message.packs else None
                launcher.send(_exchange(rank, message, _remembered(held, message), packed, spin_s))
            case protocol.Go(iteration, start_s, fails):
                _show(world.called(rank), f"it {iteration}")
                _fail(rank, fails)
                launcher.send(protocol.Done(_prepared(run, message).iterate(iteration, start_s)))
            case protocol.CountResent():
                launcher.send(protocol.Resent(segments_sent_again()))
            case protocol.Leave():
                if run is not None:
                    run.state.close()
                return True
            case protocol.Stop():
                return False
            case other:
                raise TypeError(f"not a message for a worker: {other!r}")


def _fail(rank: int, fails: protocol.FailAt | None) -> None:
    """Have the kernel end this process at the instant that is its to fail: by SIGALRM, which nothing here handles."""
    if fails is not None and rank in fails.ranks:
        signal.setitimer(signal.ITIMER_REAL, max(_SOONEST_S, fails.at_s - now_s()))


def _prepared(run: ScheduleRun | None, request: object) -> ScheduleRun:
    """Raises RuntimeError when told something before a training was prepared."""
    if run is None:
        raise RuntimeError(f"told {type(request).__name__} before a training was prepared")
    return run


def _memory(rank: int, launcher: Connection, told: protocol.Remember, world: protocol.WorldSpec) -> HeldStates:
    group = dist.group.WORLD
    assert group is not None  # the worker has joined
    dtype = torch.float32 if told.element_bytes == torch.float32.itemsize else torch.float64
    file, streams = reduction.recv_handle(launcher), Streams(group, world.streams)
    return HeldStates(file, rank, told.sizes[rank], dtype, streams, shards=told.shards)


def _exchange(
    rank: int, told: protocol.ExchangeStates, held: HeldStates, packed: TrainingState | None, spin_s: float
) -> protocol.StatesHeld:
    if packed is not None:
        held.pack(packed, told.version)
    begin_s = told.start_s + rank * told.stagger_s
    return protocol.StatesHeld(rank, held.exchange(told.messages, told.version, begin_s, spin_s))


def _remembered(held: HeldStates | None, request: object) -> HeldStates:
    """Raises RuntimeError when told something before there was memory for it."""
    if held is None:
        raise RuntimeError(f"told {type(request).__name__} before it had memory for states")
    return held
