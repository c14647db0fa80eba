"""Process 1 of the guest: mounts, imports once, forks a process per task, reports, powers the machine off.

Started by the guest's kernel as `python -m testbed.vm.guest`, with the environment that kernel_process.py puts on the
kernel's command line. Output and reports are files on the host (a hostfs mount): a console would bring interrupts at
times that the host chooses.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from testbed.vm import guest_mounts
from testbed.vm import guest_request as request
from testbed.vm.quick_imports import quick_imports, with_room
from testbed.vm.rank_states import RankStates

LOOK_S = 0.2
"""How often process 1 looks whether the user wants it to stop ..."""

LOOKS_PER_HEARTBEAT = 10
"""... and how seldom it says that it is alive."""

START_EVERY_S = 100
"""Whole seconds of virtual time, which cost nothing: longer than what is left of a lab when it is gone."""

GO_ON_EVERY_S = 10
"""The same where the lab stays: process 1 looks meanwhile, which does cost."""

_TCP_MEM_PAGES = "262144 393216 524288"
"""2 GiB at most: a guest's own default throttles TCP."""

_HEAP_BYTES = 100 * 2**20
"""What importing torch and everything else takes from the C library's heap, about; objects of Python's are in areas of
its own, where those that a worker counts references of are closer together: of what it shares with others it copies a
fifth less."""

_PAGE, _MADV_POPULATE_WRITE = 4096, 23
_POWER_OFF = 0x4321FEDC

WARM_TASK = ("testbed.vm.task", "testbed.lab.calibrate", "testbed.lab.lab", "testbed.lab.shaping.netem")
"""What every task imports; loaded before the first fork."""

WARM_TRAINING = (*WARM_TASK, "testbed.session.run", "testbed.session.beforehand", "testbed.train.preload")
"""What training imports. Torch last: what workers use of the rest is on fewer pages then, each of them a fault."""


def main() -> NoReturn:
    """Run the job; never returns, whatever happens: a process 1 that ends is a kernel panic."""
    code = 1
    try:
        guest_mounts.basics()
        guest_mounts.job(os.environ["TESTBED_JOB"], os.environ["TESTBED_OUT"])
        job = _read_job()
        guest_mounts.load_modules(job.modules)
        Path("/proc/sys/net/ipv4/tcp_mem").write_text(_TCP_MEM_PAGES, encoding="ascii")
        os.chdir("/run/tmp")
        reporter = _Reporter()
        reporter.say("booted")
        if job.tasks or job.copied:
            _import(job, reporter)
        if job.copied:
            reporter.close()
            job, reporter = _in_copy()
        codes = _run_job(job, reporter)
        _write_result(codes)
        reporter.say(request.FINISHED)
        code = 0
    except BaseException:  # noqa: BLE001 - the last chance to say what went wrong; the host prints the kernel's output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.sync()
        ctypes.CDLL(None).reboot(_POWER_OFF)
        os._exit(code)


def _read_job() -> request.GuestJob:
    job = request.GuestJob.from_json((Path(request.JOB_DIRECTORY) / request.JOB_FILE).read_text(encoding="utf-8"))
    os.environ.clear()
    os.environ.update(job.environment)
    for number, directory in enumerate(job.results):
        if directory is not None:
            guest_mounts.results(number, directory)
    return job


def _in_copy() -> tuple[request.GuestJob, _Reporter]:
    """Halt the guest. Returns in every copy of it that is made, with the copy's own job (copies.patch)."""
    own, out, *results = guest_mounts.next_copy()
    guest_mounts.job(own, out)
    job = _read_job()
    written = [number for number, task in enumerate(job.tasks) if task.out is not None]
    for number, directory in zip(written, results, strict=True):
        guest_mounts.results(number, directory)
    reporter = _Reporter()
    reporter.say("copied")
    return job, reporter


# --- the tasks -----------------------------------------------------------------------------------


class _Reporter:
    """Tells the host where the guest is, a line per event, with the guest's own time."""

    def __init__(self) -> None:
        self._file = os.open(Path(request.JOB_DIRECTORY) / request.REPORT_FILE, os.O_WRONLY | os.O_APPEND)
        self.task: int | None = None

    def say(self, event: str, processes: Sequence[str] = ()) -> None:
        report = request.GuestProgress(event, time.monotonic(), self.task, tuple(processes))
        os.write(self._file, (report.as_json() + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


def _import(job: request.GuestJob, reporter: _Reporter) -> None:
    """Before any fork: what is imported here is shared by all tasks and their workers."""
    if job.training:
        _populate_heap()
    gc.disable()  # hardly anything of what is imported is garbage, and to look for it takes 0.6 s of CPU
    with quick_imports():
        with_room(lambda: _warm(job.training))
    reporter.say("imported")
    gc.freeze()
    gc.enable()


def _run_job(job: request.GuestJob, reporter: _Reporter) -> list[int]:
    if job.virtual and job.training:
        _run_in_turn()
    turns = _Turns(len(job.tasks))
    while turns.current < len(job.tasks):
        _begin(turns.current, job, reporter, START_EVERY_S)
        code = _run_task(turns, job, reporter)
        turns.end(code)
        reporter.say("task ended")
        if _interrupted():
            break
    return turns.codes()


def _begin(number: int, job: request.GuestJob, reporter: _Reporter, every_s: int) -> None:
    if job.virtual:
        _await_start(job.phase_s, every_s)
    reporter.task = number
    reporter.say("task started")


class _Turns:
    """Which task is at work, and how those before it have ended: in memory that the processes of tasks share."""

    def __init__(self, count: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 4 * (count + 1))).cast("i")

    @property
    def current(self) -> int:
        return self._numbers[0]

    def end(self, code: int) -> None:
        """The current one has ended: the next one's turn."""
        self._numbers[self.current + 1] = code
        self._numbers[0] += 1

    def codes(self) -> list[int]:
        """Of those that have ended."""
        return self._numbers[1 : self.current + 1].tolist()


def _run_in_turn() -> None:
    """Whoever yields goes behind all others; children inherit that.

    Where computation takes no time, the default scheduler's fairness is measured in the microseconds that failing
    system calls cost: it let gloo's loop of sched_yield run on until the next tick, up to 1 ms of virtual time.
    Only for training: iperf3, which never waits for long, would keep the kernel's own threads from running at all.
    """
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _await_start(phase_s: float, every_s: int) -> None:
    """Sleep until `phase_s` after a whole multiple of `every_s` on the guest's clock.

    Every task then begins at the same instant between two ticks of the kernel's timers, however long the boot, the
    imports and the tasks before it took.
    """
    second = 10**9
    every_ns = every_s * second
    at_ns = (time.monotonic_ns() // every_ns + 1) * every_ns + round(phase_s * second)
    at = _Timespec(*divmod(at_ns, second))
    if code := ctypes.CDLL(None).clock_nanosleep(time.CLOCK_MONOTONIC, _TIMER_ABSTIME, ctypes.byref(at), None):
        raise OSError(code, f"clock_nanosleep: {os.strerror(code)}")


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_TIMER_ABSTIME = 1


def _populate_heap() -> None:
    """Have the kernel map the heap that the imports will fill in one call: page fault by page fault costs more."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    block = libc.malloc(_HEAP_BYTES)
    if not block:
        raise MemoryError("the guest has no memory for its imports")
    first, end = -(-block // _PAGE) * _PAGE, (block + _HEAP_BYTES) // _PAGE * _PAGE
    if libc.madvise(first, end - first, _MADV_POPULATE_WRITE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"madvise: {os.strerror(code)}")
    libc.free(block)  # stays with the process: kernel_process.py's MALLOC_TRIM_THRESHOLD_ is larger


def _warm(training: bool) -> None:
    for module in WARM_TRAINING if training else WARM_TASK:
        importlib.import_module(module)
    if training:
        importlib.import_module("testbed.session.beforehand").prepare()


def _run_task(turns: _Turns, job: request.GuestJob, reporter: _Reporter) -> int:
    """Run the current task, and those that its process goes on with, in a process of their own.

    Returns the exit code of the last one of them, negative for a signal.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        _task(turns, job, reporter)
    interrupted, looks, ranks, one_ended = False, 0, RankStates(), True
    while True:
        ended, status = _reap(pid) if one_ended else (False, 0)
        reporter.task = turns.current
        if ended:
            if os.WIFSIGNALED(status):
                said = f"the task was killed by {signal.Signals(os.WTERMSIG(status)).name}\n"
                errors = Path(request.JOB_DIRECTORY) / request.standard_error(turns.current)
                with errors.open("a", encoding="utf-8") as file:
                    file.write(said)
            ranks.close()
            return os.waitstatus_to_exitcode(status)
        one_ended = signal.sigtimedwait({signal.SIGCHLD}, LOOK_S) is not None
        if not one_ended:
            looks += 1
            if looks % LOOKS_PER_HEARTBEAT == 0:
                reporter.say("alive", ranks.say())
        if not interrupted and _interrupted():
            interrupted = True
            os.kill(pid, signal.SIGINT)


def _reap(pid: int) -> tuple[bool, int]:
    """Whether `pid` ended, and its status; orphans that process 1 inherits are reaped as well."""
    while True:
        try:
            found, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, 0
        if found in (0, pid):
            return found == pid, status


def _interrupted() -> bool:
    return (Path(request.JOB_DIRECTORY) / request.INTERRUPT_FILE).exists()


def _task(turns: _Turns, job: request.GuestJob, reporter: _Reporter) -> NoReturn:
    status = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _log_to(turns.current)
        from testbed.vm.task import perform

        first = turns.current

        def goes_on(code: int, place: int) -> None:
            turns.end(code)
            reporter.say("task ended")
            _begin(first + place, job, reporter, GO_ON_EVERY_S)
            _log_to(first + place)

        tasks = job.tasks[first:]
        answers = [Path(request.JOB_DIRECTORY) / request.result_file(first + n) for n in range(len(tasks))]
        status = perform(tasks, answers, goes_on)
    except BaseException:  # noqa: BLE001 - the top of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _log_to(number: int) -> None:
    """Have what is said go to a task's file."""
    sys.stdout.flush()
    sys.stderr.flush()
    errors = os.open(Path(request.JOB_DIRECTORY) / request.standard_error(number), os.O_WRONLY | os.O_APPEND)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.close(errors)


def _write_result(codes: list[int]) -> None:
    document: dict[str, Any] = {
        "codes": codes,
        "interrupts": Path("/proc/interrupts").read_text(encoding="ascii"),
    }
    (Path(request.JOB_DIRECTORY) / request.RESULT_FILE).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
