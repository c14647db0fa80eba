"""Boots a User-Mode Linux kernel over this machine's files and has it run plans, as if they had run here.

    command --sandbox--> supervisor --exec--> kernel over hostfs --> guest.py (process 1) --fork--> every plan

The sandbox (lab/sandbox.py) is why nothing outlives the command: the kernel and the host processes that carry its guest
processes live in a PID namespace that dies with it. In its mount namespace everything is read-only but the results.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from testbed import source
from testbed.errors import ExitCode, Interrupted, MachineLacks, RunFailed, in_words
from testbed.files import remove_partial
from testbed.lab import capabilities, privileges
from testbed.lab import namespaces as ns
from testbed.lab.hidden_files import hide_secrets, libraries_of_python
from testbed.lab.privileges import Privilege
from testbed.lab.sandbox import run_in_sandbox
from testbed.plugins import in_file
from testbed.progress import Replay
from testbed.scratch import scratch_directory
from testbed.session.machine_report import MACHINE_VARIABLE
from testbed.train.launcher import WORKER_ENVIRONMENT
from testbed.vm import guest_request as request
from testbed.vm import plain_root
from testbed.vm.guest_files import PACKAGE, PYTHON, SEARCH_PATH, SOURCE, lay_out
from testbed.vm.guest_machine import GuestMachine
from testbed.vm.idle import idlest_cpu
from testbed.vm.kernel import SEED_VARIABLE

DEFAULT_LIMIT_S = 900.0
"""Wall-clock limit of a boot."""

MEMORY_MB = 4096
TIME_TRAVEL_START_NS = 1_731_801_600 * 10**9
"""Every virtual clock begins here (2024-11-17): the date is input, and the same input gives the same nanoseconds."""

_PRIVATE = Path("/dev/shm")
"""In the sandbox: a tmpfs of our own, with the guest's memory, the job and the results bound into it."""

_ROOT, _KERNEL, _COPY = _PRIVATE / "root", _PRIVATE / "linux", _PRIVATE / "copy"
"""The guest's root, its kernel and its copy of the package, of which nothing says where they come from."""


@dataclass(frozen=True)
class _KernelPlace:
    """Where a guest's kernel runs, and what it begins with."""

    private: Path
    """Of the boot alone: the guest's memory, the job and the results."""
    root: Path
    kernel: Path
    program: str
    """Process 1 ..."""
    words: tuple[str, ...]
    """... its arguments ..."""
    environment: dict[str, str]
    """... and what it is told beside what every guest is."""


_IN_SANDBOX = _KernelPlace(_PRIVATE, _ROOT, _KERNEL, PYTHON, ("-m", "testbed.vm.guest"), {})

_REAL_TIME_NICENESS = -15
"""A guest in real time has one CPU for everything: whatever else this machine does must wait for it."""

_LONGEST_PHASE_S = 0.01
_MEMORY_SHARE = 0.95
"""Of this machine's memory for guest, job and results; the half that is usual for a tmpfs ends large guests early."""

_POLL_S = 0.05
_END_POLL_S = 0.01
_END_GRACE_S = 1.0
_STARTED_BY_S = 120.0


@dataclass(frozen=True)
class Assignment:
    """A plan to `train` or `calibrate` in the guest, or to measure the `engine` with."""

    what: Literal["train", "calibrate", "engine"]
    plan: str
    """The text of plan.json: all that the guest is told of it."""
    out: Path | None = None
    """Results directory on this machine; made when it does not exist."""
    shaper: str = "netem"
    quiet: bool = False
    beside_mininet: bool = False
    strict: bool = False
    sizes: tuple[int, ...] = ()
    shown: tuple[str, ...] = ()
    """Directories that a job's code may read: the guest sees them, wherever they lie."""


@dataclass(frozen=True)
class Ended:
    """How one assignment ended: its exit code as here, and its document; None where it has none."""

    code: int
    document: dict[str, Any] | None


@dataclass(frozen=True)
class Heard:
    """A report of the guest, and when the host heard it (seconds since the kernel was started)."""

    wall_s: float
    report: request.GuestProgress


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
) -> Boot:
    """Run assignments one after another in one boot; returns when the guest has powered off.

    `hear` gets what they write on standard error, as it comes (default: our standard error); with `training`
    torch is imported once, before the first of them. Call it while single-threaded.
    Raises RunFailed when the wall-clock limit passes, the kernel dies or the user interrupts.
    """
    for assignment in assignments:
        if assignment.out is not None:
            assignment.out.mkdir(parents=True, exist_ok=True)
    answer, copy = os.memfd_create("testbed-boot"), source.kept(PACKAGE)
    how = limit_s, hear, memory_mb
    try:
        if privileges.require(capabilities.OF_GUESTS) is Privilege.PLAIN_PROCESS:
            require_virtual(machine)
            with scratch_directory("testbed-guest-", _shared_memory()) as scratch:
                _answer(answer, lambda: _plainly(scratch, machine, assignments, copy, training, *how))
        else:

            def body() -> dict[str, Any]:
                job = _prepare(machine, assignments, copy, training)
                return _supervise(machine, _IN_SANDBOX, job, len(assignments), *how)

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
    return Boot(ended, heard, document["wall_s"], document["interrupts"], document["peak_memory_kb"], document["cpu_s"])


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
    machine: GuestMachine,
    place: _KernelPlace,
    job_directory: Path,
    tasks: int,
    limit_s: float,
    hear: Replay | None,
    memory_mb: int,
) -> dict[str, Any]:
    watch = _Watch(job_directory, tasks, hear or _to_stderr)
    began = time.monotonic()
    kernel = _start(machine, place, memory_mb)
    try:
        while kernel.poll() is None:
            wall_s = time.monotonic() - began
            watch.look(wall_s)
            if wall_s > limit_s:
                raise RunFailed(
                    f"the guest did not finish within {limit_s:g} s of wall-clock time; {watch.last(wall_s)}"
                )
            if wall_s > _STARTED_BY_S and not watch.heard:
                raise RunFailed(f"the guest did not come up within {_STARTED_BY_S:g} s{_kernel_output(place.private)}")
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        (job_directory / request.INTERRUPT_FILE).touch()
        _await_last_word(kernel, watch, began, _END_GRACE_S)
        raise
    finally:
        kernel.kill()  # its guest's processes end with the sandbox, right after this
        kernel.wait()
        watch.look(time.monotonic() - began)
        if hear is not None:
            hear.close()
    result = job_directory / request.RESULT_FILE
    if not result.is_file():
        why = f"{_memory_is_full(place.private)}{_kernel_output(place.private)}"
        raise RunFailed(f"the guest's kernel ended before its work did{why}")
    found = json.loads(result.read_text(encoding="utf-8"))
    ended = [
        Ended(code if code >= 0 else int(ExitCode.RUN_FAILED), _document(job_directory / request.result_file(n)))
        for n, code in enumerate(found["codes"])
    ]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "ended": [asdict(entry) for entry in ended],
        "heard": [asdict(entry) for entry in watch.heard],
        "wall_s": time.monotonic() - began,
        "interrupts": found["interrupts"],
        "peak_memory_kb": used.ru_maxrss,
        "cpu_s": used.ru_utime + used.ru_stime,
    }


def _memory_is_full(private: Path) -> str:
    """Says so; a kernel that may not have a page that it touches is ended."""
    room = os.statvfs(private)
    whole_gib = room.f_blocks * room.f_frsize / 2**30
    return f": it has used all of the {whole_gib:.1f} GiB that it may have" if room.f_bavail == 0 else ""


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
    job = _write_job(scratch, machine, assignments, training, results)
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
    place = _KernelPlace(scratch, Path("/"), machine.kernel, sys.executable, words, told)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _supervise(machine, place, job, len(assignments), limit_s, hear, memory_mb)
    finally:
        signal.signal(signal.SIGTERM, before)


def require_virtual(machine: GuestMachine) -> None:
    """Raises MachineLacks, where nobody may make namespaces, for a kernel in real time: Debian's stays behind."""
    if not machine.virtual and privileges.require(capabilities.OF_GUESTS) is Privilege.PLAIN_PROCESS:
        raise MachineLacks(f"{privileges.no_namespaces()}; --clock virtual needs none")


def _shared_memory() -> Path | None:
    """Where a guest's memory is in memory; None: not here."""
    return _PRIVATE if os.access(_PRIVATE, os.W_OK | os.X_OK) else None


def _await_last_word(kernel: subprocess.Popen[bytes], watch: _Watch, began: float, grace_s: float) -> None:
    """Give the guest time to write what it has, not to power off: it does that process by process, for nobody."""
    until = time.monotonic() + grace_s
    while kernel.poll() is None and not watch.finished() and time.monotonic() < until:
        time.sleep(_END_POLL_S)
        watch.look(time.monotonic() - began)


def _prepare(machine: GuestMachine, assignments: Sequence[Assignment], copy: Path | None, training: bool) -> Path:
    """Lay out what the guest sees: everything read-only, a tmpfs with the job, the results directories in it."""
    results = [
        None if assignment.out is None else os.open(assignment.out, os.O_PATH | os.O_DIRECTORY)
        for assignment in assignments
    ]
    ns.make_read_only("/")
    ns.mount("testbed-vm", str(_PRIVATE), "tmpfs", options=f"size={_MEMORY_SHARE:.0%}")
    job = _write_job(_PRIVATE, machine, assignments, training)
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


def _write_job(
    private: Path,
    machine: GuestMachine,
    assignments: Sequence[Assignment],
    training: bool,
    results: Sequence[str | None] = (),
) -> Path:
    """All that the guest gets to know, below a directory of the boot's; `results` as in GuestJob."""
    job, out = private / "job", private / "out"
    for directory in (job, out, private / "memory", private / "uml"):
        directory.mkdir()
    tasks = []
    for number, assignment in enumerate(assignments):
        if assignment.out is not None:
            (out / str(number)).mkdir()
        # names do not tell where anything came from: in virtual time even a name's length is input
        (job / f"{number}.plan.json").write_text(assignment.plan, encoding="utf-8")
        directory_there = None if assignment.out is None else f"{request.GUEST_OUT}/{number}"
        plan_there = f"{request.JOB_DIRECTORY}/{number}.plan.json"
        asked = (
            _shaper(assignment.shaper, job, number),
            assignment.quiet,
            assignment.beside_mininet,
            assignment.strict,
            assignment.sizes,
            assignment.shown,
        )
        tasks.append(request.GuestTask(assignment.what, plan_there, directory_there, *asked))
        (job / request.standard_error(number)).touch()
    (job / request.REPORT_FILE).touch()
    (job / request.GUEST_LOG).touch()
    environment = {
        **_environment(),
        "HOME": "/run/tmp",
        "TMPDIR": "/run/tmp",
        "LANG": "C.UTF-8",
        "PATH": SEARCH_PATH,
        MACHINE_VARIABLE: json.dumps(machine.identity()),
    }
    # another one for every seed, so that the spread over seeds shows what the ticks of timers cost
    phase_s = _LONGEST_PHASE_S * random.Random(machine.seed).random() if machine.virtual else 0.0
    asked_of_all = environment, machine.modules, training, machine.virtual, tuple(results), phase_s
    (job / request.JOB_FILE).write_text(request.GuestJob(tuple(tasks), *asked_of_all).as_json(), encoding="utf-8")
    return job


def _shaper(name: str, job: Path, number: int) -> str:
    """The name of a shaper; of FILE.py:NAME with a copy of the file."""
    reference = in_file(name)
    if reference is None:
        return name
    copy = f"{number}.shaper.py"
    shutil.copyfile(reference.file, job / copy)
    return f"{request.JOB_DIRECTORY}/{copy}:{reference.name}"


def _document(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _environment() -> dict[str, str]:
    """What Python must know from its first instruction on: process 1 gets it from the kernel's command line."""
    return {
        **WORKER_ENVIRONMENT,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONMALLOC": "malloc",  # all from one heap, which guest.py has populated: fewer page faults
        "PYTHONPATH": SOURCE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _start(machine: GuestMachine, place: _KernelPlace, memory_mb: int) -> subprocess.Popen[bytes]:
    private = place.private
    environment = {**_environment(), "TESTBED_JOB": str(private / "job"), "TESTBED_OUT": str(private / "out")}
    environment |= place.environment
    virtual = ["time-travel=inf-cpu", f"time-travel-start={TIME_TRAVEL_START_NS}"] if machine.virtual else []
    command = [
        str(place.kernel),
        *("root=/dev/root", "rootfstype=hostfs", f"rootflags={place.root}", "ro", f"mem={memory_mb}M", "con=null"),
        *("con0=null", "quiet", "norandmaps", f"uml_dir={private / 'uml'}/", "panic=-1", f"init={place.program}"),
        *virtual,
        *(("seccomp=on",) if machine.seccomp else ()),  # kernels that cannot do it do not know the word
        *(f"{name}={value}" for name, value in environment.items()),
        *("--", *place.words),
    ]
    try:
        ns.no_address_randomisation()
    except OSError as error:
        raise MachineLacks(
            f"a guest's memory cannot be at the same addresses in every boot ({in_words(error)}): in a container use "
            "--security-opt seccomp=unconfined"
        ) from error
    own = {"TMPDIR": str(private / "memory"), "PATH": "/usr/bin:/bin", "HOME": "/"}
    if machine.seed is not None:
        own[SEED_VARIABLE] = str(machine.seed)
    with (private / "kernel.log").open("wb") as log:
        if not machine.virtual and place is _IN_SANDBOX:
            with suppress(PermissionError):  # a user's guest waits for other work: its links are measured before a run
                os.nice(_REAL_TIME_NICENESS)
        cpu = idlest_cpu()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=own,
            cwd="/",
            preexec_fn=lambda: _as_kernel(cpu),
            process_group=0,  # Ctrl-C is for the supervisor: it tells the guest, which keeps what it has
        )


def _as_kernel(cpu: int) -> None:
    """In the process that becomes the kernel: it ends with who started it, and its guest's processes with it."""
    os.sched_setaffinity(0, {cpu})
    ns.die_with_parent(signal.SIGKILL)


def _kernel_output(private: Path) -> str:
    said = ""
    for who, path in (("kernel", private / "kernel.log"), ("guest", private / "job" / request.GUEST_LOG)):
        said += "".join(f"\n  {who} | {line}" for line in path.read_text(errors="replace").splitlines()[-25:])
    return said


class _Watch:
    """Follows the guest's reports and what its tasks write, through the job directory."""

    def __init__(self, directory: Path, tasks: int, hear: Callable[[str], None]) -> None:
        self.heard: list[Heard] = []
        self._hear, self._private = hear, directory.parent
        self._reports = (directory / request.REPORT_FILE).open("rb")
        self._errors = [(directory / request.standard_error(n)).open("rb") for n in range(tasks)]
        self._partial = b""

    def look(self, wall_s: float) -> None:
        """Take in what is new."""
        for stream in self._errors:
            if said := stream.read():
                self._hear(said.decode(errors="replace"))
        *lines, self._partial = (self._partial + self._reports.read()).split(b"\n")
        self.heard += [Heard(wall_s, request.GuestProgress.from_json(line.decode())) for line in lines]

    def finished(self) -> bool:
        """Whether the guest has done what it had to, and written it: all but powering off."""
        return any(heard.report.event == request.FINISHED for heard in self.heard)

    def last(self, wall_s: float) -> str:
        """Where the guest was when it was last heard of."""
        if not self.heard:
            return f"nothing was heard of it{_kernel_output(self._private)}"
        latest = self.heard[-1]
        ranks = next((heard.report for heard in reversed(self.heard) if heard.report.processes), None)
        where = "" if latest.report.task is None else f" in task {latest.report.task + 1}"
        text = (
            f"it was last heard {wall_s - latest.wall_s:.0f} s ago ({latest.report.event}{where}), when its own clock "
            f"was at {latest.report.time_s:.3f} s"
        )
        if ranks is not None:
            text += f"; its ranks at {ranks.time_s:.3f} s: {'; '.join(ranks.processes)}"
        return text
