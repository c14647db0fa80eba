"""Under the virtual clock: workloads at full scale measured at two lab scales each; do they agree within their bounds?

    python benchmarks/similitude.py [--quick] [--out DIR]

Llama-2 13B over 120 km, GPT-3 175B with data parallelism over 120 km, Llama-2 70B in three regions. Every measured time
is held against the model at full scale without what a lab adds (the bound of that lab scale), and the two lab scales
against each other (both bounds). Prints a row per schedule, writes every comparison to --out; 1 when one is outside.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from harness import boots, options
from harness.options import ROOT
from harness.plans import made, with_every
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.plan.plan import Clock, Plan
from testbed.planning.resolve import with_clock
from testbed.spec.workload import load_workload
from testbed.vm import command

SLOTS = {"large": "20 ms", "small": "8 ms"}
MESSAGES = {"large": "70 kB", "small": "30 kB"}
LESS = {"large": "30 kB", "small": "12 kB"}
"""Where replicas exchange a hundred times as much in one message."""
LLAMA_70B = {
    "name": "paper-llama2-70b",
    "full_scale.model": "llama2-70b",
    "full_scale.accelerator.efficiency": "0.45",
    "full_scale.accelerator.memory": "64 GB",
}


def pair(name: str, rate: str, nodes: int) -> dict[str, Any]:
    """Two datacenters, 120 km apart."""
    sites = {site: {"nodes": nodes} for site in ("wuqing", "runze")}
    return {"name": name, "datacenters": sites, "links": [{"between": list(sites), "fibre": "120 km", "rate": rate}]}


def chain(name: str, fibre: str, rate: str) -> dict[str, Any]:
    """Three regions in a row, with electrical regeneration (100 us) on the way."""
    sites = {"east": {"nodes": 3}, "middle": {"nodes": 3}, "west": {"nodes": 2}}
    link = {"fibre": fibre, "equipment_delay": "100 us", "rate": rate}
    links = [{"between": ["east", "middle"], **link}, {"between": ["middle", "west"], **link}]
    return {"name": name, "datacenters": sites, "links": links}


CELLS: Mapping[str, tuple[str, dict[str, str], dict[str, str], dict[str, Any]]] = {
    "llama2-13b, 120 km": ("paper-llama2-13b", MESSAGES, {}, pair("metro", "400 Gbit/s", 4)),
    "gpt3-175b, data over 120 km": ("paper-gpt3-175b", LESS, {}, pair("trial", "3.2 Tbit/s", 8)),
    "llama2-70b, three regions": ("paper-llama2-13b", MESSAGES, LLAMA_70B, chain("regions", "1000 km", "100 Gbit/s")),
}


def plan_of(cell: str, scale: str) -> Plan:
    """A workload on its network at a lab scale, with all its schedules."""
    file, messages, settings, network = CELLS[cell]
    lab = {"lab.slot": SLOTS[scale], "lab.message": messages[scale]}
    settings = {**settings, **lab, "iterations": "2", "warmup": "1"}
    if file == "paper-gpt3-175b":
        settings |= {
            "placement": str([f"wuqing/{rank}" for rank in range(8)]),
            "data_parallel.replicas": str([[f"runze/{rank}" for rank in range(8)]]),
        }
    workload = load_workload(ROOT / f"workloads/{file}.yaml", settings)
    return with_clock(with_every(made(network, workload)), Clock("virtual"))


def main() -> int:
    """Run all; 1 when a time is outside its bound, 0 otherwise."""
    parser = options.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="the first workload only")
    options.add_out(parser, "similitude", recorded=False)
    arguments = parser.parse_args()
    cells = list(CELLS)[:1] if arguments.quick else list(CELLS)
    trainings = []
    for number, cell in enumerate(cells):
        for scale in SLOTS:
            place = arguments.out / f"{number}-{scale}"
            place.mkdir(parents=True, exist_ok=True)
            trainings.append(command.GuestTraining(plan_of(cell, scale), place))
    documents = boots.in_a_boot(trainings)
    pairs = zip(documents[::2], documents[1::2], strict=True)
    found = [row for cell, both in zip(cells, pairs, strict=True) for row in rows_of(cell, *both)]
    (arguments.out / "similitude.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    claim = report(found)
    return finish(arguments, Topic.TRUTH, [claim], directories=[training.directory for training in trainings])


def rows_of(cell: str, large: dict[str, Any] | None, small: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A row per schedule: both scales at full scale, and whether they are within their bounds."""
    if large is None or small is None:
        return [{"cell": cell, "schedule": "-", "good": False}]
    rows = []
    for one, other in zip(large["schedules"], small["schedules"], strict=True):
        sides = one["full_scale"], other["full_scale"]
        apart = [abs(side["measured_s"] - side["ideal_s"]) for side in sides]
        difference_s = abs(sides[0]["measured_s"] - sides[1]["measured_s"])
        bounds = [side["bound_s"] for side in sides]
        rows.append(
            {
                "cell": cell,
                "schedule": one["label"],
                "ideal_s": sides[0]["ideal_s"],
                "measured_s": [side["measured_s"] for side in sides],
                "off": [side / sides[0]["ideal_s"] for side in apart],
                "bound": [bound / sides[0]["ideal_s"] for bound in bounds],
                "difference": difference_s / sides[0]["ideal_s"],
                "trusted": one["trusted"] and other["trusted"],
                "good": difference_s <= sum(bounds)
                and all(off <= bound for off, bound in zip(apart, bounds, strict=True)),
            }
        )
    return rows


def report(found: list[dict[str, Any]]) -> Claim:
    """Print the table; that every schedule is within its bounds."""
    rows: list[tuple[str, ...]] = []
    for row in found:
        if "ideal_s" not in row:
            rows.append((row["cell"], row["schedule"], "failed", "", "", "", "", "NO", "NO"))
            continue
        pairs = (", ".join(f"{one:.3%}" for one in row[key]) for key in ("off", "bound"))
        measured = ", ".join(f"{one:.4f} s" for one in row["measured_s"])
        words = ("yes" if row[key] else "NO" for key in ("good", "trusted"))
        times = (f"{row['ideal_s']:.4f} s", measured, *pairs, f"{row['difference']:.3%}")
        rows.append((row["cell"], row["schedule"], *times, *words))
    columns = ("workload", "schedule", "model", "measured", "off", "bound", "apart", "within", "trusted")
    show_table("at full scale, measured at two lab scales (large, small)", columns, rows, 140)
    good, of = sum(row["good"] and row.get("trusted", False) for row in found), len(found)
    worst = max((max(row["off"]) for row in found if "off" in row), default=None)
    got = f"{good} of {of} schedules" + (f", off by at most {worst:.3%}" if worst is not None else "")
    what = "full scale: workloads at two lab scales"
    return Claim(what, "within the stated bound, trusted", got, good == of, worst, "share of the prediction", of, of)


if __name__ == "__main__":
    sys.exit(main())
