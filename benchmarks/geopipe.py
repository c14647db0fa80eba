"""GeoPipe's claims under the virtual clock: what a cut costs 1F1B, what extra warm-up forwards (dN) win back.

    python benchmarks/geopipe.py [--slope] [--recovery] [--ablation] [--knee] [--regime] [--in-flight] [--json]
                                 [--out DIR]

P = 8 equal stages, tau = F + B = 30 ms. c is the one-way time of a message over a cut: delay and time on the wire.
Everything is really trained; the bubble is the idle share of all ranks' time from the common start to the last end, for
equal stages 1 - M tau / T. The paper (arXiv 2510.12064) reports -78.91 % bubble ("up to") and -9.1 % iteration time
without M, c or the formula of its bubble: the regime in which both come out together (c about 0.1 tau, M about 290) is
our inference. All asked for (default: every one) run in one boot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import boots, options
from harness.plans import made, with_every
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.plan.framing import wire_bytes
from testbed.plan.host_costs import measured_costs
from testbed.plan.plan import Plan
from testbed.results.run_tables import frame_of
from testbed.spec.document import validate
from testbed.spec.workload import Workload

RANKS = 8
TAU_S = 0.03
LATENCY, WIRE = 0.05, 0.02
"""In tau: the delay where the rate is swept, time on the wire where the delay is."""
MESSAGE = 100_000
LIMIT_S = 3 * 3600.0
FLAT, STEEP = (0.5, 0.7, 0.85), (1.15, 1.3, 1.5)
"""S/(B tau) below and above the knee, for the two lines that meet there."""


class Cell(NamedTuple):
    """One pipeline and its schedules. Of the cuts, `one_way` has c in tau, `wire` the part of it on the wire."""

    name: str
    microbatches: int
    one_way: tuple[float, ...]
    schedules: tuple[dict[str, Any], ...]
    wire: float = WIRE
    receives: str = "early"


class Row(NamedTuple):
    """A figure."""

    figure: str
    asked: str
    got: str
    ok: bool


Measured = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Cell -> label -> the entry of comparison.json."""


def geo(*extra: int) -> dict[str, Any]:
    """GeoPipe with dN of every cut, or of all cuts alike, or without any as many as hide the cuts."""
    if not extra:
        return {"schedule": "geopipe"}
    label = f"dN {'+'.join(map(str, extra))}"
    return {"schedule": "geopipe", "extra": extra[0] if len(extra) == 1 else list(extra), "label": label}


def enough(one_way: float) -> int:
    """dN* = ceil(2c / tau)."""
    return int(np.ceil(2 * one_way - 1e-9))


# --- cells ---------------------------------------------------------------------------------------

SLOPE_M, SLOPES = (16, 48), (0.1, 0.5, 1.0, 2.0)
RECOVERY_M, RECOVERIES = 48, (0.9, 1.9)
ABLATION_M, ABLATIONS = 48, (0.1, 0.5, 1.0, 2.0)
KNEE_M = 48
REGIME_M, REGIME_C = 290, 0.105
IN_FLIGHT_C = (0.9, 0.4)


def slope_cells() -> list[Cell]:
    return [Cell(f"slope-c{c:g}-m{m}", m, (c,), ({"schedule": "1f1b"},)) for c in SLOPES for m in SLOPE_M]


def recovery_cells() -> list[Cell]:
    return [Cell(f"recovery-c{c:g}", RECOVERY_M, (c,), tuple(geo(n) for n in range(enough(c) + 2))) for c in RECOVERIES]


def ablation_cells() -> list[Cell]:
    cells = []
    for c in ABLATIONS:
        cells.append(Cell(f"ablation-c{c:g}-late", ABLATION_M, (c,), ({"schedule": "1f1b"},), receives="late"))
        extras = (0, enough(c), enough(c) + 1)
        cells.append(Cell(f"ablation-c{c:g}", ABLATION_M, (c,), tuple(map(geo, extras))))
    return cells


def knee_cells() -> list[Cell]:
    return [
        Cell(f"knee-s{sigma:g}", KNEE_M, (LATENCY + sigma,), (geo(), {"schedule": "1f1b"}), wire=sigma)
        for sigma in (*FLAT, 1.0, *STEEP)
    ]


def regime_cells() -> list[Cell]:
    return [Cell("regime", REGIME_M, (REGIME_C,), ({"schedule": "1f1b"}, geo()))]


def in_flight_cells() -> list[Cell]:
    return [Cell("in-flight", 32, IN_FLIGHT_C, (geo(0, 0), geo(2, 0), geo(0, 3), geo()))]


def plan_of(cell: Cell) -> Plan:
    """A cell as a plan: the pipeline's ranks evenly over datacenters in a chain, one more than it has cuts."""
    sites = [*("west", "middle", "east")[: len(cell.one_way)], "far"]
    counts = [len(part) for part in np.array_split(range(RANKS), len(sites))]
    message = wire_bytes(MESSAGE) + measured_costs("virtual").gloo_bytes
    rate = f"{8 * message / (cell.wire * TAU_S):.0f} bit/s"
    links = [
        {"between": list(ends), "delay": f"{(c - cell.wire) * TAU_S * 1e9:.0f} ns", "rate": rate}
        for ends, c in zip(pairwise(sites), cell.one_way, strict=True)
    ]
    datacenters = {site: {"nodes": count} for site, count in zip(sites, counts, strict=True)}
    third = f"{TAU_S / 3 * 1e3:g} ms"
    job = {
        "name": cell.name.replace(".", "-"),
        "model": {"layers": RANKS, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": RANKS},
        "microbatches": cell.microbatches,
        "microbatch_size": 1,
        "pacing": dict.fromkeys("FIW", third),
        "message": f"{MESSAGE} B",
        "memory": 64,
        "receives": cell.receives,
        "schedules": list(cell.schedules),
        "iterations": 1,
        "warmup": 1,
    }
    network = {"name": "geopipe", "datacenters": datacenters, "links": links}
    return with_every(made(network, validate(Workload, job, cell.name)))


# --- figures -------------------------------------------------------------------------------------


def seconds(found: Measured, cell: str, label: str) -> float:
    """A measured iteration time."""
    return float(found[cell][label]["measured_s"])


def slope(found: Measured, _: Path) -> list[Row]:
    """What a further microbatch costs 1F1B beyond its tau."""
    few, many = SLOPE_M
    rows = []
    for c in SLOPES:
        times = [seconds(found, f"slope-c{c:g}-m{m}", "1f1b") for m in SLOPE_M]
        paid = (times[1] - times[0]) / (many - few) / TAU_S - 1
        off, figure = paid / c - 1, f"1F1B pays per microbatch, c = {c:g} tau"
        rows.append(Row(figure, f"{c:g} tau +-1 %", f"{paid:.4f} tau ({off:+.2%})", abs(off) <= 0.01))
    return rows


def recovery(found: Measured, _: Path) -> list[Row]:
    """Iteration time by dN, over the time with the cut paid once."""
    rows = []
    for c in RECOVERIES:
        least = (RECOVERY_M + RANKS - 1 + 2 * c) * TAU_S
        *rest, star, more = (seconds(found, f"recovery-c{c:g}", f"dN {n}") / least - 1 for n in range(enough(c) + 2))
        falling, times = all(a > b + 0.001 for a, b in pairwise([*rest, star])), " ".join(f"{one:+.1%}" for one in rest)
        rows += [
            Row(f"c = {c:g} tau, dN = 0 ... {len(rest) - 1}: over (M+P-1) tau + 2c", "falls", times, falling),
            Row(f"c = {c:g} tau, dN* = {len(rest)}", "recovered (<= 0.1 %)", f"{star:+.3%}", abs(star) <= 0.001),
            Row(f"c = {c:g} tau, dN* + 1", "none beyond (<= 0.1 %)", f"{more:+.3%}", abs(more) <= 0.001),
        ]
    return rows


def ablation(found: Measured, _: Path) -> list[Row]:
    """Blocking (late receives), early receives alone, dN*, dN* + 1; in units of the time with the cut paid once."""
    rows = []
    for c in ABLATIONS:
        least = (ABLATION_M + RANKS - 1 + 2 * c) * TAU_S
        late = seconds(found, f"ablation-c{c:g}-late", "1f1b") / least
        numbers = (0, enough(c), enough(c) + 1)
        early, star, more = (seconds(found, f"ablation-c{c:g}", f"dN {n}") / least for n in numbers)
        fine, got = late > early > star, f"{late:.3f} {early:.3f} {star:.3f} {more:.3f}"
        fine &= abs(more / star - 1) <= 0.001
        rows.append(Row(f"c = {c:g} tau: late, early, dN*, dN*+1", "falls, last two alike", got, fine))
    return rows


def knee(found: Measured, _: Path) -> list[Row]:
    """Where the flat line of enough rate meets the steep one of too little."""

    def line(sigmas: Sequence[float], label: str) -> tuple[float, float]:
        slope, start = np.polyfit(sigmas, [seconds(found, f"knee-s{sigma:g}", label) for sigma in sigmas], 1)
        return float(slope), float(start)

    flat, steep = line(FLAT, "geopipe"), line(STEEP, "geopipe")
    meet = (flat[1] - steep[1]) / (steep[0] - flat[0])
    plain = [line(sigmas, "1f1b")[0] for sigmas in (FLAT, STEEP)]
    times = " ".join(f"{seconds(found, f'knee-s{s:g}', 'geopipe'):.3f}" for s in (*FLAT, 1.0, *STEEP))
    slopes = "slope above over slope below, dN* and 1F1B"
    got = f"{steep[0] / flat[0]:.1f} and {plain[1] / plain[0]:.2f}"
    fine = steep[0] > 10 * flat[0] and plain[1] < 1.25 * plain[0]
    return [
        Row("knee of dN* in S/(B tau)", "1 +-3 %", f"{meet:.4f}", abs(meet - 1) <= 0.03),
        Row(slopes, "> 10; < 1.25", got, fine),
        Row(f"s at {' '.join(f'{s:g}' for s in (*FLAT, 1.0, *STEEP))}", "(report)", times, True),
    ]


def regime(found: Measured, _: Path) -> list[Row]:
    """The bubble and the iteration time that dN saves, M = 290."""
    plain, ahead = found["regime"]["1f1b"], found["regime"]["geopipe"]
    bubble = ahead["bubble_measured"] / plain["bubble_measured"] - 1
    iteration = ahead["measured_s"] / plain["measured_s"] - 1
    where = f"M = {REGIME_M}, c = {REGIME_C:g} tau"
    got = f"{bubble:+.2%} ({plain['bubble_measured']:.2%} to {ahead['bubble_measured']:.2%})"
    return [
        Row(f"bubble, {where}", "-79 % +-1", got, abs(bubble + 0.79) <= 0.01),
        Row(f"iteration, {where}", "-9.1 % +-0.3", f"{iteration:+.2%}", abs(iteration + 0.091) <= 0.003),
    ]


def in_flight(found: Measured, out: Path) -> list[Row]:
    """What the first rank really held at once: microbatches, and the bytes behind all tensors kept for them."""
    table, rows = frame_of(out / "in-flight/iterations.parquet", ["schedule", "held"]), []
    chosen = [enough(c) for c in IN_FLIGHT_C]
    for label, ahead in (("dN 0+0", 0), ("dN 2+0", 2), ("dN 0+3", 3), ("geopipe", sum(chosen))):
        held = max(float(one[0]) for one in table.loc[table["schedule"] == label, "held"])
        memory = found["in-flight"][label]["memory"]
        counted, predicted = (memory[side][0]["activations"] for side in ("measured", "predicted"))
        off = counted / predicted - 1
        got = f"{counted:.0f} B ({off:+.3%}), {counted / held:.0f} B for each microbatch"
        rows += [
            Row(f"rank 0, P + sum of dN, {label}", f"{RANKS + ahead}", f"{held:g}", held == RANKS + ahead),
            Row(f"its activations, {label}", f"{predicted:.0f} B +-0.5 %", got, abs(off) <= 0.005),
        ]
    return rows


class Part(NamedTuple):
    """A set of cells, what is read from them, and what they show: in words, and what is asked."""

    cells: Callable[[], list[Cell]]
    figures: Callable[[Measured, Path], list[Row]]
    claim: str
    asked: str


PARTS = {
    "slope": Part(slope_cells, slope, "1F1B pays c per microbatch", "1%"),
    "recovery": Part(recovery_cells, recovery, "excess at dN < dN*, dN*, dN* + 1", "falls; <= 0.1%; none beyond"),
    "ablation": Part(ablation_cells, ablation, "late, early, dN*, dN* + 1", "falls, last two alike"),
    "knee": Part(knee_cells, knee, "knee of dN* in S/(B tau), slopes above over below", "1 +- 3%; > 10; < 1.25"),
    "regime": Part(
        regime_cells, regime, f"M = {REGIME_M}, c = {REGIME_C:g} tau: bubble, iteration", "-79 +- 1%, -9.1 +- 0.3%"
    ),
    "in-flight": Part(in_flight_cells, in_flight, "microbatches held, and their bytes", "P + sum of dN; 0.5%"),
}


def main() -> int:
    """Train what is asked for; 1 where a figure is not as asked, or a run not to be trusted."""
    parser = options.parser(__doc__)
    for name in PARTS:
        parser.add_argument(f"--{name}", action="append_const", dest="parts", const=name)
    parser.add_argument("--json", action="store_true")
    options.add_out(parser, "geopipe", recorded=False)
    asked = parser.parse_args()
    chosen = {name: PARTS[name] for name in asked.parts or PARTS}
    plans = {cell.name: plan_of(cell) for part in chosen.values() for cell in part.cells()}
    documents = boots.all_in_a_boot(plans, asked.out, limit_s=LIMIT_S)
    found = {name: {row["label"]: row for row in document["schedules"]} for name, document in documents.items()}
    figures = {name: part.figures(found, asked.out) for name, part in chosen.items()}
    claims = []
    for name, rows in figures.items():
        shown = [(row.figure, row.asked, row.got, "" if row.ok else "MISSED") for row in rows]
        show_table(name, ("figure", "asked", "got", ""), shown)
        got, fine = "; ".join(row.got for row in rows), all(row.ok for row in rows)
        claims.append(Claim(PARTS[name].claim, PARTS[name].asked, got, fine))
    every = [row for rows in found.values() for row in rows.values()]
    worst, untrusted = max((row["error"] for row in every), key=abs), sum(not row["trusted"] for row in every)
    got = f"{len(every)} schedules, off by at most {worst:+.4%}, {untrusted} untrusted"
    claims.append(Claim("GeoPipe's runs: the model", "all trusted", got, not untrusted, abs(worst), "share"))
    if asked.json:
        shown_figures = {name: [row._asdict() for row in rows] for name, rows in figures.items()}
        print(json.dumps({"figures": shown_figures, "measured": found}, indent=1))
    return finish(asked, Topic.SCHEDULES, claims, directories=[asked.out / name for name in plans])


if __name__ == "__main__":
    sys.exit(main())
