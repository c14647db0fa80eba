"""Boots a User-Mode Linux kernel over this machine's files and has it run plans, as if they had run here.

    command --sandbox--> supervisor --exec--> kernel over hostfs --> guest.py (process 1) --fork--> every plan

The sandbox (lab/sandbox.py) is why nothing outlives the command: the kernel and the host processes that carry its guest
processes live in a PID namespace that dies with it. In its mount namespace everything is read-only but the results.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed import source
from testbed.errors import ExitCode, Interrupted, MachineLacks, RunFailed
from testbed.files import remove_partial
from testbed.lab import capabilities, privileges
from testbed.lab import namespaces as ns
from testbed.lab.hidden_files import hide_secrets, libraries_of_python
from testbed.lab.privileges import Privilege
from testbed.lab.sandbox import run_in_sandbox
from testbed.progress import Replay
from testbed.scratch import scratch_directory
from testbed.vm import guest_request as request
from testbed.vm import plain_root
from testbed.vm.guest_files import PACKAGE, PYTHON, lay_out
from testbed.vm.guest_machine import GuestMachine
from testbed.vm.guest_work import Assignment, write_job
from testbed.vm.kept_guest import KeptGuest
from testbed.vm.kernel_process import Heard, KernelPlace, RunningGuest, Watch, await_last_word, kernel_output, start

DEFAULT_LIMIT_S = 900.0
"""Wall-clock limit of a boot."""

MEMORY_MB = 4096
_PRIVATE = Path("/dev/shm")
"""In the sandbox: a tmpfs of our own, with the guest's memory, the job and the results bound into it."""

_ROOT, _KERNEL, _COPY = _PRIVATE / "root", _PRIVATE / "linux", _PRIVATE / "copy"
"""The guest's root, its kernel and its copy of the package, of which nothing says where they come from."""


IN_SANDBOX = KernelPlace(_PRIVATE, _ROOT, _KERNEL, PYTHON, ("-m", "testbed.vm.guest"), {}, in_sandbox=True)

_MEMORY_SHARE = 0.95
"""Of this machine's memory for guest, job and results; the half that is usual for a tmpfs ends large guests early."""

_SCRATCH = "testbed-guest-"
_POLL_S = 0.05
_END_GRACE_S = 1.0
_STARTED_BY_S = 120.0


@dataclass(frozen=True)
class Ended:
    """How one assignment ended: its exit code as here, and its document; None where it has none."""

    code: int
    document: dict[str, Any] | None


@dataclass(frozen=True)
class Boot:
    """One boot from start to end."""

    ended: tuple[Ended, ...]
    heard: tuple[Heard, ...]
    wall_s: float
    interrupts: str
    """/proc/interrupts of the guest at its end."""
    peak_memory_kb: int
    """The most of the host's memory that the guest's kernel had: all that any process in it ever touched."""
    cpu_s: float
    """What the whole guest took of the host's processors: unlike wall time hardly longer on a busy host."""
    copy: int | None
    """Where it was no boot, but a copy of the kept guest: the how many-th of that."""

    def wall_until(self, event: str) -> float | None:
        """Wall-clock seconds from the start of the kernel to the first report of `event`."""
        return next((heard.wall_s for heard in self.heard if heard.report.event == event), None)


def run_assignments(
    machine: GuestMachine,
    assignments: Sequence[Assignment],
    *,
    limit_s: float = DEFAULT_LIMIT_S,
    training: bool = True,
    hear: Replay | None = None,
    memory_mb: int = MEMORY_MB,
    kept: KeptGuest | None = None,
) -> Boot:
    """Run assignments one after another in one boot, or in a copy of a `kept` guest; returns when it has powered off.

    `hear` gets what they write on standard error, as it comes (default: our standard error); with `training`
    torch is imported once, before the first of them. Call it while single-threaded.
    Raises RunFailed when the wall-clock limit passes, the kernel dies or the user interrupts.
    """
    for assignment in assignments:
        if assignment.out is not None:
            assignment.out.mkdir(parents=True, exist_ok=True)
    answer, copy = os.memfd_create("testbed-boot"), None if kept is not None else source.kept(PACKAGE)
    try:
        if kept is not None:
            with scratch_directory(_SCRATCH, _shared_memory()) as scratch:
                _answer(answer, lambda: _copied(kept, scratch, machine, assignments, training, limit_s, hear))
        elif privileges.require(capabilities.OF_GUESTS) is Privilege.PLAIN_PROCESS:
            require_virtual(machine)
            with scratch_directory(_SCRATCH, _shared_memory()) as scratch:
                plainly = scratch, machine, assignments, copy, training, limit_s, hear, memory_mb
                _answer(answer, lambda: _plainly(*plainly))
        else:

            def body() -> dict[str, Any]:
                job = prepare(machine, assignments, copy, training)
                return _supervise(lambda: start(machine, IN_SANDBOX, memory_mb), job, len(assignments), limit_s, hear)

            run_in_sandbox(lambda: _answer(answer, body), own_proc=False)
        os.lseek(answer, 0, os.SEEK_SET)
        with os.fdopen(os.dup(answer), encoding="utf-8") as stream:
            text = stream.read()
    finally:
        os.close(answer)
        for assignment in assignments:  # of a guest that was ended while it wrote
            if assignment.out is not None:
                remove_partial(assignment.out)
    if not text:
        raise Interrupted("interrupted, and ended before the guest did")
    document = json.loads(text)
    if "error" in document:
        raise _ERRORS[document["kind"]](document["error"])
    return _boot_from(document)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _boot_from(document: dict[str, Any]) -> Boot:
    reports = ((entry["wall_s"], json.dumps(entry["report"])) for entry in document["heard"])
    heard = tuple(Heard(wall_s, request.GuestProgress.from_json(report)) for wall_s, report in reports)
    ended = tuple(Ended(**entry) for entry in document["ended"])
    rest = {name: document[name] for name in ("wall_s", "interrupts", "peak_memory_kb", "cpu_s")}
    return Boot(ended, heard, **rest, copy=document.get("copy"))


# --- in the sandbox ------------------------------------------------------------------------------

_ERRORS = {error.__name__: error for error in (RunFailed, Interrupted, MachineLacks)}


def _answer(answer: int, body: Callable[[], dict[str, Any]]) -> int:
    """Hand the result of `body`, or its error, to the process outside."""
    try:
        document = body()
    except (RunFailed, MachineLacks) as error:
        document = {"error": str(error), "kind": type(error).__name__}
    except KeyboardInterrupt:
        document = {"error": "interrupted", "kind": Interrupted.__name__}
    os.write(answer, json.dumps(document).encode())
    return ExitCode.OK


def _supervise(
    begin: Callable[[], RunningGuest], job_directory: Path, tasks: int, limit_s: float, hear: Replay | None
) -> dict[str, Any]:
    watch = Watch(job_directory, tasks, hear or _to_stderr)
    began = time.monotonic()
    guest = begin()
    try:
        while guest.poll() is None:
            wall_s = time.monotonic() - began
            watch.look(wall_s)
            if wall_s > limit_s:
                raise RunFailed(
                    f"the guest did not finish within {limit_s:g} s of wall-clock time; {watch.last(wall_s)}"
                )
            if wall_s > _STARTED_BY_S and not watch.heard:
                said = kernel_output(job_directory.parent)
                raise RunFailed(f"the guest did not come up within {_STARTED_BY_S:g} s{said}")
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        (job_directory / request.INTERRUPT_FILE).touch()
        await_last_word(guest, watch, began, _END_GRACE_S)
        raise
    finally:
        guest.end()
        watch.look(time.monotonic() - began)
        if hear is not None:
            hear.close()
    result = job_directory / request.RESULT_FILE
    if not result.is_file():
        raise RunFailed(f"the guest's kernel ended before its work did{guest.why()}")
    found = json.loads(result.read_text(encoding="utf-8"))
    ended = [
        Ended(code if code >= 0 else int(ExitCode.RUN_FAILED), _document(job_directory / request.result_file(n)))
        for n, code in enumerate(found["codes"])
    ]
    peak_memory_kb, cpu_s = guest.used()
    return {
        "ended": [asdict(entry) for entry in ended],
        "heard": [asdict(entry) for entry in watch.heard],
        "wall_s": time.monotonic() - began,
        "interrupts": found["interrupts"],
        "peak_memory_kb": peak_memory_kb,
        "cpu_s": cpu_s,
    }


# --- in a copy of the kept guest -----------------------------------------------------------------


def _copied(
    kept: KeptGuest,
    scratch: Path,
    machine: GuestMachine,
    assignments: Sequence[Assignment],
    training: bool,
    limit_s: float,
    hear: Replay | None,
) -> dict[str, Any]:
    """The same in a copy, which is given its directories open: whoever keeps the guest sees none of them."""
    job = write_job(scratch, machine, assignments, training)
    outs = [assignment.out for assignment in assignments if assignment.out is not None]
    with _interrupted_when_terminated():
        document = _supervise(
            lambda: kept.copied(scratch, [job, scratch / "out", *outs]), job, len(assignments), limit_s, hear
        )
    return document | {"copy": kept.copy}


@contextmanager
def _interrupted_when_terminated() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- as a plain process --------------------------------------------------------------------------


def _plainly(
    scratch: Path,
    machine: GuestMachine,
    assignments: Sequence[Assignment],
    copy: Path | None,
    training: bool,
    limit_s: float,
    hear: Replay | None,
    memory_mb: int,
) -> dict[str, Any]:
    """The same where nobody may make namespaces: the guest's kernel has this user's rights, and its process 1 lays out
    in there what the sandbox would here (plain_root.py)."""
    results = [None if assignment.out is None else str(assignment.out.resolve()) for assignment in assignments]
    job = write_job(scratch, machine, assignments, training, results)
    frozen = copy if copy is not None else source.freeze(scratch / "source", guest_path=PACKAGE).parent
    shown = [place for assignment in assignments for place in assignment.shown]
    told = {
        "PYTHONPATH": str(frozen),
        plain_root.HOME: str(Path.home().resolve()),
        plain_root.COPY: str(frozen),
        plain_root.SHOWN: ":".join(shown),
        plain_root.LOG: str(job / request.GUEST_LOG),
    }
    words = "-m", plain_root.__name__
    place = KernelPlace(scratch, Path("/"), machine.kernel, sys.executable, words, told)
    with _interrupted_when_terminated():
        return _supervise(lambda: start(machine, place, memory_mb), job, len(assignments), limit_s, hear)


def require_virtual(machine: GuestMachine) -> None:
    """Raises MachineLacks, where nobody may make namespaces, for a kernel in real time: Debian's stays behind."""
    if not machine.virtual and privileges.require(capabilities.OF_GUESTS) is Privilege.PLAIN_PROCESS:
        raise MachineLacks(f"{privileges.no_namespaces()}; --clock virtual needs none")


def _shared_memory() -> Path | None:
    """Where a guest's memory is in memory; None: not here."""
    return _PRIVATE if os.access(_PRIVATE, os.W_OK | os.X_OK) else None


def prepare(
    machine: GuestMachine,
    assignments: Sequence[Assignment],
    copy: Path | None,
    training: bool,
    *,
    copied: bool = False,
) -> Path:
    """Lay out what the guest sees: everything read-only, a tmpfs with the job, the results directories in it.

    In a sandbox. One that is to be `copied` has no assignments. Raises MachineLacks.
    """
    results = [
        None if assignment.out is None else os.open(assignment.out, os.O_PATH | os.O_DIRECTORY)
        for assignment in assignments
    ]
    ns.make_read_only("/")
    ns.mount("testbed-vm", str(_PRIVATE), "tmpfs", options=f"size={_MEMORY_SHARE:.0%}")
    job = write_job(_PRIVATE, machine, assignments, training, copied=copied)
    for number, result in enumerate(results):
        if result is not None:
            target = str(_PRIVATE / "out" / str(number))
            ns.mount(f"/proc/self/fd/{result}", target, "none", ns.MS_BIND)
            ns.make_writable(target)
            os.close(result)
    try:
        ns.bind(machine.kernel, _KERNEL)
        if copy is not None:
            ns.bind(copy, _COPY)
        shown = [Path(place) for assignment in assignments for place in assignment.shown]
        hide_secrets([*libraries_of_python(), *shown])
        lay_out(_ROOT, None if copy is None else _COPY)
    except OSError as error:
        raise MachineLacks(f"the guest's file system cannot be laid out: {error}") from error
    return job


def _document(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
