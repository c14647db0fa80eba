"""The fork server: the one process that imports torch; every worker is forked from it into its container.

Started with `python -m testbed.train.fork_server CONTROL_FD`. The launcher's connections to workers come over that one,
a descriptor for each rank, with the world that they are to join.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Collection
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.train.data import Corpus
    from testbed.train.protocol import WorldSpec

_NAMES = 20_000
"""More than a worker makes; 2 ms."""
_SHOWN_S = 0.1
"""For a worker to write where its threads are."""


def main(arguments: list[str]) -> int:
    """Import torch, train the reference where asked, fork workers on each StartWorkers, report how each ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    (control_fd,) = map(int, arguments)
    control = Connection(control_fd)
    began = time.monotonic()
    gc.disable()  # what is imported is never garbage: to look for it takes a fifth of the time
    # deferred on purpose: this is the slow import that only the fork server pays
    import testbed.train.preload  # noqa: F401 - isort: skip
    from testbed.train.data import load_corpus

    corpus = load_corpus()
    _leave_room_for_names()
    gc.freeze()  # nor need workers look at it, and copy its pages
    gc.collect()  # nor write, in their first collection, to what Python keeps for use again
    gc.enable()
    # the launcher may leave at any moment, with a word unread too: then nobody is there to be told
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(control, corpus, time.monotonic() - began)
    return 0


def _leave_room_for_names() -> None:
    """Have Python's table of interned strings grow now where it is nearly full, not in each worker, at the first names
    of files: each would write 10 MB of its own."""
    for number in range(_NAMES):
        sys.intern(f"testbed name {number}")  # each takes a place, also when it is gone


def _serve(control: Connection, corpus: Corpus, imported_s: float) -> None:
    from testbed.train.idle_threads import sleep_exactly
    from testbed.train.protocol import Imported, ReferenceTrained, StartWorkers, TrainReference
    from testbed.train.reference_process import trained_in_own_process

    control.send(Imported(imported_s))
    while True:
        match control.recv():
            case TrainReference() as request:
                control.send(ReferenceTrained(trained_in_own_process(request, corpus)))
            case StartWorkers(world):
                sleep_exactly()
                _hold(_forked(control, world, corpus), control)
            case other:
                raise TypeError(f"not a message for the fork server: {other!r}")


def _forked(control: Connection, world: WorldSpec, corpus: Corpus) -> dict[int, int]:
    """Fork the workers of a world; returns their ranks, by process."""
    from testbed.lab.namespaces import fork_into
    from testbed.train.pacing import needed_spin_s
    from testbed.train.worker import become_worker

    worker_fds = [reduction.recv_handle(control) for _ in world.places]
    longest_spin_s = needed_spin_s(min)  # before there are workers, who would be in each other's way
    ranks: dict[int, int] = {}
    gc.freeze()  # what has come since the imports stays, too
    gc.collect()  # as above
    for rank, place in enumerate(world.places):
        pid = fork_into(place.container_pid)
        if pid == 0:
            become_worker(rank, world, control, worker_fds, corpus, longest_spin_s)
        ranks[pid] = rank
    for fd in worker_fds:
        os.close(fd)
    return ranks


def _hold(ranks: dict[int, int], control: Connection) -> None:
    """Report what becomes of workers, by process, until all have ended."""
    from testbed.train.protocol import END_WORKERS, Exited, Halted

    signal.signal(END_WORKERS, lambda *_: _kill(ranks))  # no message: nobody reads any while there are workers
    while ranks:
        pid, waited = os.waitpid(-1, os.WUNTRACED | os.WCONTINUED)
        if os.WIFSTOPPED(waited) or os.WIFCONTINUED(waited):
            control.send(Halted(ranks[pid], os.WSTOPSIG(waited) if os.WIFSTOPPED(waited) else 0))
        else:
            control.send(Exited(ranks.pop(pid), os.waitstatus_to_exitcode(waited)))


def _kill(pids: Collection[int]) -> None:
    """Kill workers that hang, once they have had the time to say where."""
    from testbed.train.protocol import SHOW_THREADS

    for number, pause_s in ((SHOW_THREADS, _SHOWN_S), (signal.SIGKILL, 0.0)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, number)
        time.sleep(pause_s)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take apart what torch has made costs 0.4 s, and libraries would complain of what is frozen
