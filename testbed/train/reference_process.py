"""Trains the reference in a process of its own, forked from the one that has imported torch: no network, a deadline."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pickle import UnpicklingError

from testbed.lab.confinement import confine, own_machine
from testbed.lab.namespaces import die_with_parent, fork_into_new_pid_namespace
from testbed.train.assignment import ReferenceOutcome
from testbed.train.data import Corpus
from testbed.train.protocol import TrainReference
from testbed.train.received import receive
from testbed.train.reference import train_reference


def trained_in_own_process(request: TrainReference, corpus: Corpus) -> ReferenceOutcome:
    """The losses, or why there are none: whatever happens to the process is no reason to end the run."""
    ours, theirs = Pipe(duplex=False)
    pid = os.fork() if request.confinement is None else fork_into_new_pid_namespace()
    if pid == 0:
        _train(request, corpus, theirs)
    theirs.close()
    try:
        if not ours.poll(request.deadline_s):
            return ReferenceOutcome(refused=f"one process did not train the same within {request.deadline_s:.0f} s")
        answer = receive(ours)
    except UnpicklingError as error:
        return ReferenceOutcome(refused=f"the process that trained the same without a pipeline lies: {error}")
    except (EOFError, OSError):
        return ReferenceOutcome(refused="the process that trained the same without a pipeline ended without a word")
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not isinstance(answer, ReferenceOutcome):
        return ReferenceOutcome(refused=f"the process that trained the same without a pipeline lies: {answer!r:.60}")
    return answer


def _train(request: TrainReference, corpus: Corpus, answer: Connection) -> None:
    """The forked process: never returns."""
    try:
        die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
        if request.confinement is not None:
            own_machine()
            confine(request.confinement._replace(shared=""), answer.fileno(), real_time=False)
        began = time.monotonic()
        trained = train_reference(
            request.workload,
            corpus,
            request.iterations,
            request.lasts,
            resized=request.resized,
            replicas=request.replicas,
        )
        took_s = time.monotonic() - began
        parameters = trained.parameters if request.lasts else None
        rounding = trained.loss_rounding, trained.norm_rounding
        answer.send(ReferenceOutcome(trained.losses, trained.gradient_norms, took_s, "", parameters, *rounding))
    except BaseException as error:  # noqa: BLE001 - nothing may escape a fork, and the run's verdict needs the reason
        answer.send(ReferenceOutcome(refused=f"training in one process failed: {type(error).__name__}: {error}"))
    finally:
        os._exit(0)
