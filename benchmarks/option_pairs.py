"""Every option beside every other one: plans that cover all pairs of them, measured on the virtual clock.

    python benchmarks/option_pairs.py [--plans 150] [--first 0] [--seed 1] [--schedules 3] [--per-boot 12]
        [--recorded] [--out DIR]

A covering array over the options of topology, workload and command: each pair of values that may stand together does
so in a plan. Numbers (delays, rates, slots, sizes) are drawn by seed, as is the array: another seed gives other plans.
Where one array has fewer than --plans rows, the next one goes on. A combination that the command line refuses is
counted with its reason, an error without one is a fault. A row is a fault as well where it is trusted and further than
0.05 % from its prediction (or from the nearer end of its range), or untrusted though nothing disturbed it, unless it
says that the model does not cover it. Prints all
faults, the share of pairs that were measured, and the worst rows; exit code 1 where there is a fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml
from harness import boots, options, report
from harness.options import ROOT
from harness.record import Claim, Topic

from testbed.cli.options import Enforcement
from testbed.cli.plan import PlanOptions, enforced, scheduled_and_routed
from testbed.plan.plan import Clock, Plan
from testbed.planning import resolve
from testbed.schedule.registry import FAMILIES
from testbed.vm import command

TARGET = 0.0005
FORWARD_S = 0.01
MOST_RANKS, MOST_NODES = 12, 20
TRIES = 8
SITES = ("oslo", "bonn", "rome", "lima", "cairo")

Row = Mapping[str, Any]

OPTIONS: dict[str, tuple[Any, ...]] = {
    "schedule": tuple(name for name, family in FAMILIES.items() if not family.solver),
    "network": ("chain", "ring", "star", "parallel", "clos"),
    "sites": (2, 3, 5),
    "directions": ("equal", "unlike", "far apart"),
    "cards": (None, "equal", "unequal"),
    "policy": (
        None,
        "ecmp",
        "greedy",
        "greedy-bytes",
        "greedy-time",
        "annealing",
        "joint,evaluations=150",
        "interleave,within=0.3",
    ),
    "enforce": (None, "ports"),
    "event": (None, "lose", "arrive", "depart"),
    "jobs": (1, 2, 3),
    "alone": (False, True),
    "pipeline": (1, 2, 3, 4),
    "data": (1, 2, 3),
    "tensor": (1, 2, 4),
    "exchange": ("zero-1 ring", "none ring", "zero-1 hierarchical", "none hierarchical"),
    "placement": ("contiguous", "scattered"),
    "receives": ("early", "late"),
    "recompute": (False, True),
    "microbatches": ("one", "fewer than ranks", "odd", "even"),
    "message": ("tensor", "small", "middle", "large"),
    "slots": ("equal", "unequal", "fused B", "no W"),
    "memory": ("default", "ample", "per rank"),
    "model": ("gpt float32", "gpt float64", "my_model.py"),
    "optimizer": ("adamw", "sgd"),
    "queue": (False, True),
    "happens": (None, "rate", "delay", "outage", "slower rank"),
    "varying": (None, "action", "microbatch", "samples", "factors"),
    "rounds": ("together", "free"),
    "traffic": (None, "steady", "changing"),
    "adapt": (None, "schedules", "microbatches"),
    "fails": (False, True),
    "streams": (1, 3),
    "shaper": ("auto", "relay"),
}


class Cell(NamedTuple):
    """A plan of the array."""

    number: int
    options: Row


def possible(values: Sequence[Any]) -> bool:
    """Whether the first options of a row (in the order of its array) may stand together, and are small enough."""
    row = dict(values)
    ranks = row.get("pipeline", 1) * row.get("data", 1) * row.get("tensor", 1)
    jobs = row.get("jobs", 1)
    if ranks + 2 * (jobs - 1) > MOST_RANKS:
        return False
    refused = (
        row.get("event") in ("arrive", "depart") and jobs == 1,
        row.get("event") == "lose" and row.get("network") in ("chain", "star"),
        row.get("alone") and (jobs == 1 or row.get("event") is not None),
        row.get("enforce") == "ports" and row.get("network") not in (None, "clos"),
        row.get("network") == "ring" and row.get("sites") == 2,
        row.get("network") == "clos" and row.get("cards") == "unequal",
        row.get("model") == "my_model.py" and row.get("tensor", 1) > 1,
        row.get("event") is not None and str(row.get("policy")).startswith(("joint", "interleave")),
        row.get("traffic") and row.get("enforce") == "ports",
        row.get("streams", 1) > 1 and row.get("enforce") == "ports",
        # links of a Clos and of its hosts have no names of their own that an event could have
        row.get("network") == "clos" and (row.get("happens") in ("rate", "delay", "outage") or row.get("traffic")),
        row.get("rounds") == "free" and any(row.get(name) for name in ("event", "alone", "happens", "adapt", "fails")),
        row.get("adapt") and (jobs > 1 or row.get("alone") or row.get("event") or row.get("fails")),
        row.get("fails") and row.get("enforce") == "ports",
        row.get("fails") and any((jobs > 1, row.get("event"), row.get("happens"), row.get("traffic"))),
    )
    return not any(refused)


Pair = tuple[str, Any, str, Any]


def pairs_in(row: Row) -> set[Pair]:
    """All pairs of values that a row has, however its options are ordered."""
    return {(*one, *other) for one, other in combinations(sorted(row.items()), 2)}


def array(seed: int, number: int) -> list[Row]:
    """A covering array, drawn by seed: row after row, the one of several that has most pairs that none had before.

    Each begins with such a pair. Pairs that no row was found for are left out: they cannot stand together in one.
    """
    draw = Random(f"pairs/{seed}/{number}")
    names = sorted(OPTIONS)
    lacking = {
        (a, x, b, y)
        for a, b in combinations(names, 2)
        for x in OPTIONS[a]
        for y in OPTIONS[b]
        if possible([(a, x), (b, y)])
    }
    rows = []
    while lacking:
        first = draw.choice(sorted(lacking, key=repr))
        tried = [row for _ in range(TRIES) if (row := _with_pair(first, lacking, draw)) is not None]
        lacking.discard(first)
        if tried:
            best = max(tried, key=lambda row: len(pairs_in(row) & lacking))
            lacking -= pairs_in(best)
            rows.append(best)
    return rows


def _with_pair(pair: Pair, lacking: Set[Pair], draw: Random) -> Row | None:
    """A row with this pair, its other options drawn one by one: whichever value has most of what is lacking with those
    before it. None where none is possible any more."""
    row = {pair[0]: pair[1], pair[2]: pair[3]}
    for name in draw.sample(sorted(OPTIONS), len(OPTIONS)):
        if name in row:
            continue
        values = draw.sample(OPTIONS[name], len(OPTIONS[name]))
        left = [value for value in values if possible([*row.items(), (name, value)])]
        if not left:
            return None
        row[name] = max(left, key=lambda value: len(pairs_with(row, name, value) & lacking))
    return row


def pairs_with(row: Row, name: str, value: Any) -> set[Pair]:
    """Those of a value of an option with each one of a row."""
    return {
        (name, value, other, there) if name < other else (other, there, name, value) for other, there in row.items()
    }


def cells(seed: int, plans: int, first: int) -> list[Cell]:
    """So many rows of one array after the other, from a number on."""
    rows: list[Row] = []
    number = 0
    while len(rows) < first + plans:
        rows += array(seed, number)
        number += 1
    return [Cell(index, rows[index]) for index in range(first, first + plans)]


class Drawn:
    """The files of one plan, with numbers drawn by seed."""

    def __init__(self, cell: Cell, seed: int, schedules: int) -> None:
        self.row, self.draw, self.schedules = cell.options, Random(f"pairs/{seed}/plan/{cell.number}"), schedules
        self.message_bytes = {
            "tensor": 20e3,
            "small": self.draw.uniform(2e4, 5e4),
            "middle": self.draw.uniform(1e5, 4e5),
            "large": self.draw.uniform(1e6, 2e6),
        }[self.row["message"]]
        self.rates_bps: list[float] = []
        """Of the links so far."""

    def _time(self, seconds: float) -> str:
        """In a unit that chance chooses."""
        unit, factor = self.draw.choice((("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)))
        return f"{seconds * factor:.9f} {unit}"

    def _direction(self, apart: float) -> dict[str, str]:
        wire_s = FORWARD_S * 10 ** self.draw.uniform(-1.3, 0.2)
        rate_bps = min(2e9, max(4e6, 8 * self.message_bytes / wire_s)) * apart
        delay_s = 10 ** self.draw.uniform(-3.3, -2)
        self.rates_bps.append(min(4e9, rate_bps))
        return {"delay": self._time(delay_s / apart), "rate": f"{self.rates_bps[-1]:.0f} bit/s"}

    def _link(self, ends: tuple[str, str], name: str | None = None) -> dict[str, Any]:
        link: dict[str, Any] = {"between": list(ends)} | ({"name": name} if name else {})
        directions = self.row["directions"]
        link |= self._direction(1.0)
        if directions != "equal":
            link["reverse"] = self._direction(1.0 if directions == "unlike" else self.draw.uniform(10, 50))
        if self.row["queue"]:
            link["queue"] = "200 MB"
        return link

    def sites(self) -> list[str]:
        """Where nodes are."""
        if self.row["network"] == "clos":
            return [f"pod-leaf{leaf}" for leaf in range(self.row["sites"])]
        return list(SITES[: self.row["sites"]])

    def nodes(self) -> int:
        """In each site: enough for every job, whole stages of tensor ranks."""
        tensor, sites = self.row["tensor"], self.row["sites"]
        own = self.row["data"] * -(-self.row["pipeline"] // sites)
        each = max(own, 1 + -(-self.row["data"] * self.row["pipeline"] // sites))
        return int(tensor * each + 2 * (self.row["jobs"] - 1))

    def topology(self) -> dict[str, Any]:
        """Its links are of one kind; the datacenters' cards may differ."""
        sites, nodes = self.sites(), self.nodes()
        cards = {"delay": self._time(2e-5), "rate": f"{self.draw.uniform(2e8, 2e9):.0f} bit/s"}
        if self.row["network"] == "clos":
            pod: dict[str, Any] = {"leaves": len(sites), "spines": 2, "hosts": nodes}
            pod |= {"rate": f"{self.draw.uniform(5e7, 1e9):.0f} bit/s", "delay": self._time(self.draw.uniform(0, 1e-3))}
            inside = {"inside": cards} if self.row["cards"] else {}
            return {"name": "pairs", "datacenters": {"pod": {"clos": pod} | inside}}
        ends = [(sites[0], site) for site in sites[1:]] if self.row["network"] == "star" else list(pairwise(sites))
        names: list[str | None] = [None] * len(ends)
        if self.row["network"] == "ring":
            ends, names = [*ends, (sites[-1], sites[0])], [*names, None]
        if self.row["network"] == "parallel":
            ends, names = [ends[0], *ends], ["south", "north", *names[1:]]
        datacenters = {}
        for site in sites:
            inside = {"inside": cards} if self.row["cards"] else {}
            datacenters[site] = {"nodes": nodes} | inside
            if self.row["cards"] == "unequal":
                cards = {"delay": self._time(5e-5), "rate": f"{self.draw.uniform(4e7, 1e9):.0f} bit/s"}
        links = [self._link(pair, name) for pair, name in zip(ends, names, strict=True)]
        return {"name": "pairs", "datacenters": datacenters, "links": links}

    def workloads(self) -> list[dict[str, Any]]:
        """The job of the row, and small ones beside it."""
        free = {site: [f"{site}/{node}" for node in range(self.nodes())] for site in self.sites()}
        first = self._job(self.row["pipeline"], self.row["data"], self.row["tensor"], free)
        small = {"memory": 8, "schedules": [self.draw.choice(("1f1b", "gpipe", "zb-h1", "crosspipe-greedy"))]}
        others = [self._job(2, 1, 1, free) | small for _ in range(self.row["jobs"] - 1)]
        return [first, *others]

    def _job(self, pipeline: int, data: int, tensor: int, free: dict[str, list[str]]) -> dict[str, Any]:
        row, draw = self.row, self.draw
        microbatches = {
            "one": 1,
            "fewer than ranks": max(1, pipeline - 1),
            "odd": 2 * draw.randint(pipeline // 2 + 1, pipeline + 1) + 1,
            "even": 2 * draw.randint(pipeline // 2 + 1, pipeline + 1),
        }[row["microbatches"]]
        job: dict[str, Any] = {
            "name": "job",
            "model": self._model(pipeline),
            "parallelism": {"pipeline": pipeline, "data": data, "tensor": tensor},
            "microbatches": microbatches,
            "microbatch_size": 2 if row["adapt"] == "microbatches" else draw.choice((1, 2)),
            "pacing": self._pacing(pipeline),
            "receives": row["receives"],
            "recompute": row["recompute"],
            "schedules": self._schedules(),
            "optimizer": {"kind": row["optimizer"]},
            "iterations": 6 if row["adapt"] else 4 if row["event"] or row["happens"] or row["fails"] else 2,
            "streams": row["streams"],
            "warmup": 1,
            "seed": draw.randrange(1000),
        }
        if row["message"] != "tensor":
            job["message"] = f"{self.message_bytes:.0f} B"
        if row["memory"] != "default":
            most = 2 * max(pipeline, microbatches)
            job["memory"] = (
                most if row["memory"] == "ample" else [draw.randint(pipeline, most) for _ in range(pipeline)]
            )
        places = self._places(pipeline * data, tensor, free) if row["placement"] == "scattered" else []
        if places:
            job["placement"] = places[0 : pipeline * tensor]
        if data > 1:
            sharding, algorithm = row["exchange"].split()
            job["data_parallel"] = {"sharding": sharding, "algorithm": algorithm}
            job["data_parallel"]["parameters"] = f"{10 ** draw.uniform(5.3, 6.3):.0f} B"
            if places:
                length = pipeline * tensor
                job["data_parallel"]["replicas"] = [places[n * length : (n + 1) * length] for n in range(1, data)]
        return job

    def _places(self, stages: int, tensor: int, free: dict[str, list[str]]) -> list[str]:
        """A node for every rank, those of a stage in one site, every stage in a site drawn anew."""
        found: list[str] = []
        for _ in range(stages):
            site = self.draw.choice([site for site, nodes in free.items() if len(nodes) >= tensor])
            found += free[site][:tensor]
            del free[site][:tensor]
        return found

    def _model(self, pipeline: int) -> dict[str, Any]:
        if self.row["model"] == "my_model.py":
            kind = f"{ROOT / 'examples/my_model.py'}:Mlp"
            return {"kind": kind, "layers": 2 * pipeline + 1, "width": 16, "sequence": 8}
        dtype = self.row["model"].split()[1]
        return {"layers": 2 * pipeline, "d_model": 16, "heads": 4, "sequence": 8, "dtype": dtype}

    def _pacing(self, pipeline: int) -> dict[str, Any]:
        def times(factor: float = 1.0) -> Any:
            count = 1 if self.row["slots"] in ("equal", "no W") else pipeline
            medians = [factor * FORWARD_S * self.draw.uniform(0.5, 1.6) for _ in range(count)]
            if count == 1:
                medians = [factor * FORWARD_S]
            match self.row["varying"]:
                case "actions" | "microbatches" as each:
                    wider = self.draw.uniform(1.05, 1.6)
                    ends = [median * wider for median in medians]
                    return {
                        "median": said(medians),
                        "p95": said(ends),
                        "each": {"actions": "action"}.get(each, "microbatch"),
                    }
                case "samples":
                    shares = [self.draw.uniform(0.8, 1.3) for _ in range(5)]
                    return {"median": said(medians), "samples": [self._time(share * medians[0]) for share in shares]}
                case _:
                    return said(medians)

        def said(seconds: Sequence[float]) -> Any:
            texts = [self._time(one) for one in seconds]
            return texts if len(texts) > 1 else texts[0]

        pacing = {"F": times(), "I": times(1.2), "W": "0 s" if self.row["slots"] == "no W" else times(0.8)}
        pacing |= {"B": times(1.7)} if self.row["slots"] == "fused B" else {}
        if self.row["varying"] == "factors":
            pacing |= {"factors": [round(self.draw.uniform(0.8, 1.5), 3) for _ in range(pipeline)]}
        return pacing

    def _schedules(self) -> list[str]:
        others = [name for name in OPTIONS["schedule"] if name not in (self.row["schedule"], "search")]
        return [self.row["schedule"], *self.draw.sample(others, self.schedules - 1)]

    def happens(self) -> list[str]:
        """What becomes of the first link, or of a rank, in an iteration."""
        link, draw = f"link {self.link()}", self.draw
        latest_ms = 5 if self.row["event"] == "lose" else 80  # an outage is to be over before its link is lost
        inside = f"at iteration 1 + {draw.randint(0, latest_ms)} ms"
        match self.row["happens"]:
            case "rate":
                return [f"{link} rate {draw.randint(40, 90)} % {inside}"]
            case "delay":
                return [f"{link} delay x{draw.uniform(1.2, 3):.2f} {inside}"]
            case "outage":
                return [f"{link} down for {draw.randint(3, 3 + latest_ms // 2)} ms {inside}"]
            case "slower rank":
                named = "job " if self.row["jobs"] > 1 else ""
                rank = draw.randrange(self.row["pipeline"] * self.row["data"] * self.row["tensor"])
                return [f"{named}rank {rank} slower x{draw.uniform(1.1, 2):.2f} at iteration 1 to 3"]
            case _:
                return []

    def link(self) -> str:
        """The name of the first one."""
        first = f"{SITES[0]}--{SITES[1]}"
        return {"clos": "pod-spine1", "parallel": "south"}.get(self.row["network"], first)

    def traffic(self) -> list[tuple[str, str, str, str]]:
        """Rows of a file of background traffic: a fifth of the slowest link at most."""
        if not self.row["traffic"]:
            return []
        most_bps = min(300e6, *(0.2 * bps for bps in self.rates_bps))
        source, target, *_ = self.sites()
        ends = source, target
        found = [(*ends, f"{most_bps * self.draw.uniform(0.2, 0.9):.0f} bit/s", "0 s")]
        if self.row["traffic"] == "changing":
            found.append((*ends, f"{most_bps * self.draw.uniform(0.2, 0.9):.0f} bit/s", self._time(0.15)))
        return found


def plan_of(cell: Cell, seed: int, schedules: int, out: Path) -> Plan:
    """A cell as files, and as the plan that the command line makes of them. Raises BadInput."""
    drawn, row = Drawn(cell, seed, schedules), cell.options
    documents = [drawn.topology(), *drawn.workloads()]
    files = []
    for place, document in enumerate(documents):
        files.append(out / f"plan-{cell.number:03d}.{f'workload-{place}' if place else 'topology'}.yaml")
        files[-1].write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    background = None
    if rows := drawn.traffic():
        background = out / f"plan-{cell.number:03d}.traffic.csv"
        background.write_text("\n".join(map(",".join, [("from", "to", "rate", "at"), *rows])), encoding="utf-8")
    made = resolve.load_plan(*files, events=drawn.happens(), background=background)
    made = resolve.with_clock(made, Clock("virtual"))
    made = replace(made, rounds="free") if row["rounds"] == "free" else made
    made = enforced(made, Enforcement(row["enforce"]) if row["enforce"] else None)
    job = [f"{made.jobs[-1].name}@2"]
    words = {"lose": [f"{drawn.link()}@2"], "arrive": job, "depart": job}
    lose, arrive, depart = (texts if event == row["event"] else None for event, texts in words.items())
    asked = PlanOptions(
        None,
        policy=[row["policy"]] if row["policy"] else None,
        lose=lose,
        arrive=arrive,
        depart=depart,
        alone=row["alone"],
        adapt="ski-rental" if row["adapt"] else None,
        vary=[f"microbatches={2 * made.jobs[0].workload.microbatches}"] if row["adapt"] == "microbatches" else None,
        checkpoint="every=2,save=30 ms,restart=200 ms" if row["fails"] else None,
        failure=[f"rank {drawn.draw.randrange(made.jobs[0].mesh.size)} at 0.3 s"] if row["fails"] else None,
    )
    return scheduled_and_routed(made, asked, files[1:], quiet=True, strict=False, to_train=True)[0]


def training(cell: Cell, seed: int, schedules: int, out: Path) -> command.GuestTraining:
    """A cell as files and plan, and where its run goes. Raises BadInput."""
    return command.GuestTraining(plan_of(cell, seed, schedules, out), out / name_of(cell), cell.options["shaper"])


def name_of(cell: Cell) -> str:
    """Of its results."""
    return f"plan-{cell.number:03d}"


def pairs(chosen: Sequence[Cell]) -> set[Pair]:
    """All pairs of values that these plans have."""
    return {pair for cell in chosen for pair in pairs_in(cell.options)}


def claims_of(taken: boots.Taken, chosen: Sequence[Cell]) -> list[Claim]:
    """Print every fault with the options of its plan; how far off, what is wrongly untrusted, which pairs were met."""
    options_of = {name_of(cell): json.dumps(cell.options) for cell in chosen}
    for row in taken.rows:
        if row.covered and (row.missed > TARGET or not row.trusted):
            print(f"FAULT {row.plan}: {row.label} {row.error:+.4%}\n  {options_of[row.plan]}")
    met = pairs([cell for cell in chosen if name_of(cell) in taken.comparisons])
    share = f"{len(met)} of {len(pairs(chosen))}"
    return [
        report.truth("all pairs of options (a covering array)", taken, TARGET),
        Claim("pairs of options that were measured together", "(report)", share, value=float(len(met)), unit="pairs"),
    ]


def main() -> int:
    """Measure the array; 1 where there is a fault, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "option-pairs", plans=150, per_boot=12)
    parser.add_argument("--schedules", type=int, default=3, help="per plan, the row's own one among them")
    asked = parser.parse_args()
    chosen = cells(asked.seed, asked.plans, asked.first)
    taken = boots.take(asked, {name_of(cell): partial(training, cell, asked.seed, asked.schedules) for cell in chosen})
    report.show_worst(taken, most=10)
    return report.close(asked, Topic.TRUTH, taken, claims_of(taken, chosen))


if __name__ == "__main__":
    sys.exit(main())
