"""What becomes of a run when a signal hits one of its processes: does it end in time, with a reason, leaving nothing?

    python benchmarks/under_fire.py [--cases 36] [--first 0] [--seed 1] [--signals KILL INT TERM HUP]
        [--record [NAME]]

Real labs on the real clock. Each case draws a moment (a phase of the run, and so long into it), a process of the run
by what it does, and a signal, every pair of process and signal in turn. A run may go on where the process does not mind
(a worker leaves Ctrl-C to who started it); else it has to end with exit code 4 within two seconds, or of the signal
where the command itself was hit. A run that goes on is ended by Ctrl-C to the command, within two seconds too. Then
none of its processes, namespaces and temporary files may be left. Prints a line for each case, then a table by process.
Needs root. Exit code 1 when one fails.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, each, finish
from harness.report import show_table

from testbed.grouping import grouped

PROMISED_S = 2.0
LEFT_S = 30.0
"""A spinner at idle priority dies when a busy machine gives it a turn."""
LIMIT_S = 60.0
PHASES = ("building", "measuring links", "starting workers", "training 1f1b")
ROLES = ("command", "sandbox", "main", "relay", "shell", "border", "fork server", "worker", "spinner")
RUN = (
    *("-m", "testbed", "run", "topologies/two-dc-metro.yaml", "workloads/tiny-gpt-pp4.yaml", "--schedule=1f1b"),
    *("--iterations=500", "--set=microbatches=4", "--set=pacing={F: 10 ms, I: 10 ms, W: 10 ms}", "--no-picture"),
    "--set=message=100 kB",
)


class Case(NamedTuple):
    """What is done to a run."""

    role: str
    sent: signal.Signals
    phase: str
    seconds: float
    """Into the phase."""


class Outcome(NamedTuple):
    """What became of it."""

    case: Case
    went_on: bool
    """The run did not end by itself."""
    ended_s: float
    """From the signal, or from Ctrl-C where it went on, until the command had ended."""
    code: int
    said: str
    gone_s: float
    """From there until nothing was left of it."""
    left: str
    """What was still there after a long time; empty: nothing."""

    @property
    def fault(self) -> str:
        """What is wrong with it; empty: nothing."""
        if self.left:
            return f"left: {self.left}"
        if self.went_on and self.case.sent is signal.SIGKILL and self.case.role != "spinner":
            return "went on without it, or for too long"
        if self.ended_s > PROMISED_S:
            return f"ended {self.ended_s:.1f} s later"
        killed = self.case.role == "command" and self.code == -self.case.sent
        if self.code != 4 and not killed:
            return f"exit code {self.code}"
        return "a traceback" if "Traceback" in self.said else ""


def cases(count: int, first: int, seed: int, signals: list[str]) -> Iterator[Case]:
    """Every process with every signal, again and again, at moments that are drawn."""
    draw = random.Random(f"fire/{seed}")
    sent = [signal.Signals[f"SIG{name}"] for name in signals]
    every = itertools.cycle(itertools.product(ROLES, sent))
    for number, (role, one) in zip(range(first + count), every, strict=False):
        early = role in ("command", "sandbox", "main", "shell")
        phase = draw.choice(PHASES if early else PHASES[1:] if role in ("relay", "border", "spinner") else PHASES[3:])
        case = Case(role, one, phase, draw.uniform(0.0, 1.0))
        if number >= first:
            yield case


def words_of(pid: int) -> str:
    """Its command line; empty when it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def children(pid: int) -> list[int]:
    """Its own."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def tree(pid: int) -> list[int]:
    """All below a process."""
    return [below for child in children(pid) for below in (child, *tree(child))]


def by_role(command: int) -> dict[str, list[int]]:
    """The processes of a run, by what they do."""
    found: dict[str, list[int]] = {"command": [command]}
    own = words_of(command)
    same = [pid for pid in tree(command) if words_of(pid) == own]
    found |= {"sandbox": same[:1], "main": same[-1:]}
    for pid in tree(command):
        words = words_of(pid)
        if "fork_server" in words:
            found.setdefault("worker" if not children(pid) else "fork server", []).append(pid)
        elif "relay_process" in words:
            found.setdefault("relay", []).append(pid)
        elif "spinner" in words:
            found.setdefault("spinner", []).append(pid)
        elif "mininet:" in words:
            name = words.rpartition("mininet:")[2]
            found.setdefault("shell" if "/" in name else "border", []).append(pid)
    return found


def namespaces(pids: list[int]) -> set[str]:
    """Those that these processes are in."""
    found = set()
    for pid, kind in itertools.product(pids, ("net", "mnt", "pid")):
        with contextlib.suppress(OSError):
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return found


def remains(pids: list[int], own: set[str], temporary: Path) -> tuple[float, str]:
    """Seconds until nothing is left of a run, and what is, in words, after it had time to go."""
    began = time.monotonic()
    while True:
        alive = [f"process {words_of(pid) or pid}" for pid in pids if Path(f"/proc/{pid}").exists()]
        in_use = own & namespaces([int(path.name) for path in Path("/proc").glob("[0-9]*")])
        files = [f"file {path.name}" for path in temporary.iterdir()]
        left = [*alive, *sorted(in_use), *files]
        if not left or time.monotonic() > began + LEFT_S:
            return time.monotonic() - began, ", ".join(left)[:200]
        time.sleep(0.05)


def hit(case: Case, directory: Path) -> Outcome | None:
    """Run, and send the signal; None where the run had no such process at that moment."""
    temporary, said = directory / "temporary", directory / "said"
    temporary.mkdir()
    with said.open("w") as stream:
        command = subprocess.Popen(
            [sys.executable, *RUN, "--out", str(directory / "out")],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + LIMIT_S
        while f"{case.phase} " not in said.read_text() and f"{case.phase}:" not in said.read_text():
            if command.poll() is not None or time.monotonic() > until:
                return None
            time.sleep(0.02)
        time.sleep(case.seconds)
        roles, pids = by_role(command.pid), tree(command.pid)
        own = namespaces(pids) - namespaces([os.getpid()])
        target = next(iter(roles.get(case.role, [])), None)
        if target is None:
            return None
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, case.sent)
        went_on = False
        try:
            command.wait(timeout=PROMISED_S + 1)
        except subprocess.TimeoutExpired:
            went_on, began = True, time.monotonic()
            os.kill(command.pid, signal.SIGINT)
            command.wait(timeout=LIMIT_S)
        ended_s = time.monotonic() - began
        words = said.read_text(errors="replace")
        return Outcome(case, went_on, ended_s, command.returncode, words, *remains(pids, own, temporary))
    finally:
        if command.poll() is None:
            command.kill()
            command.wait(timeout=LIMIT_S)


def show_roles(outcomes: Mapping[str, list[Outcome]]) -> None:
    """A row for each kind of process."""
    rows = [
        (
            role,
            len(of),
            sum(one.went_on for one in of),
            f"{max(one.ended_s for one in of):.2f} s",
            f"{max(one.gone_s for one in of):.2f} s",
            _faults(of),
        )
        for role, of in outcomes.items()
    ]
    show_table("a signal to one process", ["process", "cases", "went on", "slowest end", "then gone", "faults"], rows)


def _faults(outcomes: list[Outcome]) -> int:
    return sum(bool(one.fault) for one in outcomes)


def main() -> int:
    """Hit runs; print a line for each. Returns the exit code."""
    parser = options.parser(__doc__)
    parser.add_argument("--cases", type=int, default=36)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--signals", nargs="+", default=["KILL", "INT", "TERM", "HUP"])
    asked = parser.parse_args()
    outcomes: list[Outcome] = []
    missed = 0
    for number, case in enumerate(cases(asked.cases, asked.first, asked.seed, asked.signals), asked.first):
        with tempfile.TemporaryDirectory(prefix="fire-") as directory:
            found = hit(case, Path(directory))
        shown = f"{number:4} {case.sent.name:8} to {case.role:12} {case.seconds:.2f} s into {case.phase:17}"
        if found is None:
            missed += 1
            print(f"{shown} no such process then", flush=True)
            continue
        outcomes.append(found)
        how = "went on; Ctrl-C" if found.went_on else "ended"
        last = (found.said.strip().splitlines() or [""])[-1][:60]
        print(
            f"{shown} {how} {found.ended_s:.2f} s, exit {found.code} {found.fault or 'as it should'}: {last}",
            flush=True,
        )
    show_roles(grouped((one.case.role, one) for one in outcomes))
    faults, load = sum(bool(one.fault) for one in outcomes), os.getloadavg()[0]
    slow = sum(one.ended_s > PROMISED_S for one in outcomes)
    what = f"a signal ({', '.join(asked.signals)}) to one of {len(ROLES)} kinds of process of a run, at drawn moments"
    claims = [
        each(f"{what}: ends in 2 s with a reason, or goes on; nothing is left", faults, len(outcomes), unit="runs"),
        Claim("the same: ended later than 2 s", "0", f"{slow} at load {load:.0f}", slow == 0, float(slow), "runs"),
    ]
    return finish(asked, Topic.ROBUSTNESS, claims, clock="real")


if __name__ == "__main__":
    sys.exit(main())
