"""How true a real clock is, and whether its verdict is to be believed: the main job again and again, and larger plans.

    python benchmarks/real_clock.py [--demos 10] [--busy 0] [--disk] [--plans] [--out DIR]

Every demo is one `testbed run` of what `make demo` runs. `--busy N` keeps N processes computing at ordinary priority
meanwhile, `--disk` one that writes to the disk and syncs without a pause. `--plans` runs, once each: all schedules on
the long haul, eight ranks on four datacenters, and six unequal stages on three unequal datacenters.

Prints, per row: error of the model, error of the prediction with what this machine adds, whether the measured time lies
in its interval, and the verdict; at last what must not be: trusted rows that are far off.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from front_door import TOPOLOGY, WORKLOAD, busy
from harness import options
from harness.boots import run_testbed
from harness.record import Claim, Topic, finish
from harness.report import show_run

from testbed.lab.namespaces import die_with_parent

PLANS = Path(__file__).parent / "plans"
FAR = 0.025
"""A trusted row whose time is further from the model's than this is a wrong verdict."""

ALL = (
    "gpipe", "1f1b", "zb-h1", "zb-h2", "geopipe", "interleaved-1f1b", "looped-bfs", "zb1p", "zb-v", "dualpipe-v",
    "crosspipe-greedy", "wave-greedy", "search", "crosspipe-ud", "crosspipe-wave", "crosspipe-loop",
)  # fmt: skip

LARGER = {
    "all schedules, long haul": (TOPOLOGY, WORKLOAD, "--set=memory=8", *(f"--schedule={name}" for name in ALL)),
    "8 ranks, four datacenters": ("topologies/four-dc.yaml", "workloads/tiny-gpt-pp8.yaml"),
    "6 unequal stages, three unequal datacenters": (str(PLANS / "uneven.yaml"), str(PLANS / "uneven-pp6.yaml")),
}

WRITER = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
"""


class Row(NamedTuple):
    """One schedule of one run."""

    label: str
    error: float
    on_this_host: float | None
    inside: bool
    """Whether the measured time lies in the interval predicted for this machine."""
    trusted: bool


@contextmanager
def disk_writer(wanted: bool, directory: Path) -> Iterator[None]:
    """A process that writes and syncs without a pause."""
    if not wanted:
        yield
        return
    file = directory / "written"
    command = [sys.executable, "-c", WRITER, str(file)]
    process = subprocess.Popen(command, preexec_fn=lambda: die_with_parent(signal.SIGKILL))
    try:
        yield
    finally:
        process.kill()
        process.wait()
        file.unlink(missing_ok=True)


def run(name: str, words: Sequence[str], out: Path) -> list[Row]:
    """One run; its rows, none when it gave no result."""
    began = time.monotonic()
    code, document, said = run_testbed("run", *words, "--out", str(out), "--overwrite", "--no-picture")
    if document is None:
        print(f"{name}: exit code {code}: {said}")
        return []
    show_run(f"{name}: exit code {code}, {time.monotonic() - began:.0f} s", document, _on_this_host)
    for flow, worst in _messages(document):
        print(f"  messages {flow}: {worst}", flush=True)
    return [_row(row) for row in document["schedules"]]


def _on_this_host(found: Mapping[str, Any]) -> str:
    row = _row(found)
    host = "-" if row.on_this_host is None else f"{row.on_this_host:+.2%}"
    return f", on this host {host}{'' if row.inside else ' (outside its interval)'}"


def _row(row: Mapping[str, Any]) -> Row:
    expected, measured = row["predicted_on_this_host_s"], row["measured_s"]
    inside = expected is None or row["on_this_host_low_s"] <= measured <= row["on_this_host_high_s"]
    return Row(row["label"], row["error"], expected and measured / expected - 1, inside, row["trusted"])


def _messages(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Extra time of messages by pair of ranks, over all schedules: median of medians, worst p90."""
    flows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in document["schedules"]:
        for flow in row["messages"]:
            if flow["extra_median_s"] is not None:
                flows.setdefault((flow["source_rank"], flow["target_rank"]), []).append(flow)
    for (source, target), parts in sorted(flows.items()):
        middle = sorted(part["extra_median_s"] for part in parts)[len(parts) // 2]
        yield (
            f"{source}->{target}",
            f"median {middle * 1e3:+.2f} ms, p90 at most "
            + (f"{max(part['extra_p90_s'] for part in parts) * 1e3:+.2f} ms beyond the model"),
        )


def main() -> int:
    """1 when a run gave no result or a row far off is trusted, 0 otherwise."""
    parser = options.parser(__doc__)
    parser.add_argument("--demos", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--disk", action="store_true")
    parser.add_argument("--plans", action="store_true")
    options.add_out(parser, "real-clock", recorded=False)
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with busy(asked.busy), disk_writer(asked.disk, asked.out.parent):
        found = [run(f"demo {n + 1}", (TOPOLOGY, WORKLOAD), asked.out) for n in range(asked.demos)]
        if asked.plans:
            found += [run(name, words, asked.out) for name, words in LARGER.items()]
    return finish(asked, Topic.TRUTH, claims_of(found), clock="real", directories=[asked.out])


def claims_of(found: Sequence[Sequence[Row]]) -> list[Claim]:
    """How far off the rows of all runs are, how many are trusted, and whether one of these is wrong."""
    rows = [row for one in found for row in one]
    if not rows:
        return []
    counted: dict[str, Any] = {"taken": sum(map(bool, found)), "of": len(found)}
    hosts = [row.on_this_host for row in rows if row.on_this_host is not None]
    trusted, inside = sum(row.trusted for row in rows), sum(row.inside for row in rows)
    wrong = sum(row.trusted and abs(row.error) > FAR for row in rows)
    model = f"{min(row.error for row in rows):+.2%} to {max(row.error for row in rows):+.2%}"
    worst = max(abs(row.error) for row in rows)
    claims = [
        Claim(
            "trusted rows that are far off", f"none > {FAR:.1%}", f"{wrong} of {trusted}", not wrong, wrong, **counted
        ),
        Claim("error of the model", "(report)", f"{model}; {trusted} of {len(rows)} trusted", None, worst, "share"),
    ]
    if hosts:
        got = f"{min(hosts):+.2%} to {max(hosts):+.2%}, {inside} of {len(rows)} in their intervals"
        claims.append(Claim("error of what is predicted on this host", "(report)", got, value=max(map(abs, hosts))))
    return claims


if __name__ == "__main__":
    sys.exit(main())
