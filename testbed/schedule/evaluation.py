"""Several schedules generated, and each judged by the event model; on all cores where that is worth it."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from testbed.errors import BadInput, DoesNotFit
from testbed.model.simulate import makespan
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import OverMemory
from testbed.schedule.registry import Generated, family_of, generate_choice
from testbed.search.incumbent import Watch
from testbed.spec.choice import ScheduleChoice

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing.process import BaseProcess

Argument = TypeVar("Argument")
Result = TypeVar("Result")

WORTH_PROCESSES = 6000
"""Actions of a problem from which generating takes longer than starting a process that can."""


class ScheduleRequest(NamedTuple):
    """A schedule to be made."""

    choice: ScheduleChoice
    problem: Problem
    judge: bool = True


class PredictedSchedule(NamedTuple):
    """A schedule, and how long the event model says that an iteration takes with it."""

    generated: Generated
    makespan_s: float
    """NaN where nobody asked."""


class Misfit(NamedTuple):
    """Why there is no schedule."""

    reason: str
    over_memory: bool
    """Whether more memory is all that it lacks."""


class _Refused(NamedTuple):
    """A BadInput that is no misfit; errors themselves do not always survive the way between processes."""

    reason: str


def generate_each(
    tasks: Sequence[ScheduleRequest], watch: Watch | None = None, *, cores: int | None = None
) -> list[PredictedSchedule | Misfit]:
    """The schedule of every task, or why it does not fit, in the order of the tasks.

    `cores` is how many may be used; default: those of this process. `watch` hears the solvers, which work in this
    process, one after the other: they use all cores themselves. What other processes have not begun by then is made
    here as well. Raises BadInput for what is wrong in any other way.
    """
    allowed = len(os.sched_getaffinity(0)) if cores is None else cores
    expensive = [index for index, task in enumerate(tasks) if _worth_a_process(task)]
    if min(allowed, len(expensive)) < 2:
        expensive = []
    done: dict[int, PredictedSchedule | Misfit | _Refused] = {}
    with _processes_for(min(allowed, len(expensive)) - 1 if expensive else 0) as pool:
        order = sorted(expensive, key=lambda index: _haste(tasks[index]))
        begun: dict[int, Future[PredictedSchedule | Misfit | _Refused]] = {}
        for index in order:
            assert pool is not None
            begun[index] = pool.submit(_generate, tasks[index])
        for index, task in enumerate(tasks):
            if index not in begun:
                done[index] = _generate(task, watch)
        for index in reversed(order):
            # what tells its progress is left to others: at Ctrl-C it goes on with what it has, and they end
            if not family_of(tasks[index].choice).tells_progress() and begun[index].cancel():
                done[index] = _generate(tasks[index])
        done |= {index: future.result() for index, future in begun.items() if index not in done}
    found: list[PredictedSchedule | Misfit] = []
    for index in range(len(tasks)):
        outcome = done[index]
        if isinstance(outcome, _Refused):
            raise BadInput(outcome.reason)
        found.append(outcome)
    return found


def _worth_a_process(task: ScheduleRequest) -> bool:
    actions = 3 * task.problem.n_stages * task.problem.n_microbatches
    return actions >= WORTH_PROCESSES and not family_of(task.choice).solver


def _haste(task: ScheduleRequest) -> int:
    """What takes longest is to begin first: what searches, then what looks at the links."""
    known = family_of(task.choice)
    return -known.tells_progress() - known.uses_spare_memory


def _generate(task: ScheduleRequest, watch: Watch | None = None) -> PredictedSchedule | Misfit | _Refused:
    try:
        generated = generate_choice(task.choice, task.problem, watch)
    except DoesNotFit as error:
        return Misfit(str(error), isinstance(error, OverMemory))
    except BadInput as error:
        return _Refused(str(error))
    seconds = makespan(task.problem, generated.schedule) if task.judge else math.nan
    return PredictedSchedule(generated, seconds)


_ENDS_S = 10.0
"""In which a process without work ends; concurrent.futures would wait for it for ever."""


class _KeptProcesses:
    """The processes that a block keeps, and what ends them; None: none has been asked for yet."""

    def __init__(self, ends: ExitStack) -> None:
        self.ends = ends
        self.pool: ProcessPoolExecutor | None = None


_kept: ContextVar[_KeptProcesses | None] = ContextVar("kept", default=None)


@contextmanager
def kept_processes() -> Iterator[None]:
    """A block in which `generate_each` keeps its processes: to start one takes longer than many schedules do.

    They end with the block, however that ends; within another one, with that.
    """
    if _kept.get() is not None:
        yield
        return
    with ExitStack() as ends:
        token = _kept.set(_KeptProcesses(ends))
        try:
            yield
        finally:
            _kept.reset(token)


def in_kept_process(call: Callable[[Argument], Result], argument: Argument) -> Result:
    """What a function of a module makes of an argument: called in a process that the block keeps, if there is one.

    For what runs compiled: those have it at hand, and this process would need a second or two to have it, too.
    """
    kept = _kept.get()
    if kept is None or kept.pool is None:
        return call(argument)
    return kept.pool.submit(call, argument).result()


@contextmanager
def _processes_for(count: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes that generate: those of the block that keeps some, or new ones; None for none."""
    kept = _kept.get()
    if kept is None or not count:
        with _processes(count) as pool:
            yield pool
        return
    if kept.pool is None:
        kept.pool = kept.ends.enter_context(_processes(count))
    yield kept.pool


@contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes that generate, ended with the block however that ends; None for none."""
    if not count:
        yield None
        return
    import multiprocessing  # slow to import: only where it is used
    from concurrent.futures import ProcessPoolExecutor

    # not forked: a thread that draws progress may hold any lock
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_set_up)
    ends_s = 0.0
    try:
        yield pool
        ends_s = _ENDS_S
    finally:
        # its own alone, which nothing public tells: whoever calls this may have others
        own = list((pool._processes or {}).values())
        late = threading.Timer(ends_s, _kill, [own])
        late.start()
        pool.shutdown(cancel_futures=True)
        late.cancel()
        late.join()


def _kill(processes: Iterable[BaseProcess]) -> None:
    for process in processes:
        process.kill()


def _set_up() -> None:
    """A process that generates: it ends at Ctrl-C without a traceback, and never looks for reference cycles."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the process that asked for schedules has something to say of it
    gc.disable()  # a third of the time otherwise: a schedule is thousands of small tuples, none of which is in a cycle
