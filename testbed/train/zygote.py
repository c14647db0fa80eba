"""The one process that imports torch; every worker is forked from it into its container.

Started with `python -m testbed.train.zygote CONTROL_FD WORKER_FD...`, one worker descriptor per rank.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import NoReturn


def main(arguments: list[str]) -> int:
    """Import torch, wait for StartWorkers, fork the workers, report how each ends."""
    control_fd, *worker_fds = map(int, arguments)
    control = Connection(control_fd)
    began = time.monotonic()
    # deferred on purpose: this is the slow import that only the zygote pays
    import testbed.train.warm  # noqa: F401 - isort: skip
    from testbed.lab.namespaces import attach
    from testbed.train.data import load_corpus
    from testbed.train.protocol import Exited, Failed, Imported, StartWorkers
    from testbed.train.worker import work

    corpus = load_corpus()
    gc.collect()
    gc.freeze()  # what was imported is never garbage: workers need not look at it, nor copy its pages
    control.send(Imported(time.monotonic() - began))
    try:
        request = control.recv()
    except EOFError:
        return 0
    if not isinstance(request, StartWorkers):
        raise TypeError(f"not a message for the zygote: {request!r}")
    world = request.world

    def run_worker(rank: int) -> NoReturn:
        launcher = Connection(worker_fds[rank])
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
            control.close()
            for other, fd in enumerate(worker_fds):
                if other != rank:
                    os.close(fd)
            container = world.places[rank].container_pid
            if container is not None:
                attach(container)
            # joining a PID namespace takes effect for children only
            inner = os.fork()
            if inner == 0:
                status = work(rank, world, launcher, corpus)
            else:
                launcher.close()
                _, waited = os.waitpid(inner, 0)
                status = os.waitstatus_to_exitcode(waited)
                if status < 0:
                    if -status != signal.SIGKILL:  # whose disposition cannot be set
                        signal.signal(-status, signal.SIG_DFL)
                    os.kill(os.getpid(), -status)
        except BaseException as error:  # noqa: BLE001 - nothing may escape a fork, and the launcher must hear of it
            launcher.send(Failed(rank, f"cannot enter its container: {error!r}"))
        finally:
            os._exit(status)

    ranks: dict[int, int] = {}
    for rank in range(len(world.places)):
        pid = os.fork()
        if pid == 0:
            run_worker(rank)
        ranks[pid] = rank
    for fd in worker_fds:
        os.close(fd)
    while ranks:
        pid, waited = os.wait()
        try:
            control.send(Exited(ranks.pop(pid), os.waitstatus_to_exitcode(waited)))
        except BrokenPipeError:
            return 0  # the launcher has left: nobody is there to be told
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
