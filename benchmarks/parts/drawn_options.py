"""The files and the command of a plan that has a row of options, with numbers drawn by chance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

from harness.options import ROOT

from parts.covering_array import Row
from parts.plan_options import NEW, OPTIONS
from testbed.schedule.registry import family
from testbed.units import TIME, parse

FORWARD_S = 0.01
RESTLESS = f"{ROOT / 'benchmarks/parts/restless_controller.py'}:restless"
SITES = ("oslo", "bonn", "rome", "lima", "cairo")


class Drawn:
    """The files of one plan, with numbers drawn by seed."""

    def __init__(self, row: Row, draw: Random, schedules: int) -> None:
        self.row, self.draw, self.schedules = row, draw, schedules
        self.message_bytes = {
            "tensor": 20e3,
            "small": self.draw.uniform(2e4, 5e4),
            "middle": self.draw.uniform(1e5, 4e5),
            "large": self.draw.uniform(1e6, 2e6),
        }[self.row["message"]]
        self.rates_bps: list[float] = []
        self.delays_s: list[float] = []
        """Of the links so far."""
        self.fastest = ""
        """The first link, or of two parallel ones that of less delay: what a route takes. None of a Clos has a name."""
        self.microbatches, self.first_site = 0, ""
        """Of the row's own job, and where its first rank is."""

    def _time(self, seconds: float) -> str:
        """In a unit that chance chooses."""
        unit, factor = self.draw.choice((("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)))
        return f"{seconds * factor:.9f} {unit}"

    def _direction(self, apart: float) -> dict[str, Any]:
        wire_s = FORWARD_S * 10 ** self.draw.uniform(-1.3, 0.2)
        rate_bps = min(2e9, max(4e6, 8 * self.message_bytes / wire_s)) * apart
        delay_s = 10 ** self.draw.uniform(-3.3, -2)
        self.rates_bps.append(min(4e9, rate_bps))
        self.delays_s.append(delay_s / apart)
        made: dict[str, Any] = {"delay": self._time(delay_s / apart), "rate": f"{self.rates_bps[-1]:.0f} bit/s"}
        match self.row.get("wire"):
            case "loss":
                made["loss"] = round(10 ** self.draw.uniform(-2.5, -1.3), 6)
            case "jitter":
                made["jitter"] = self._time(delay_s / apart * self.draw.uniform(0.05, 0.5))
        return made

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
        first = [link for link in links if set(link["between"]) == set(links[0]["between"])]
        fastest = min(first, key=lambda link: parse(link["delay"], TIME, "a time"))
        self.fastest = fastest.get("name", "--".join(fastest["between"]))
        return {"name": "pairs", "datacenters": datacenters, "links": links}

    def workloads(self) -> list[dict[str, Any]]:
        """The job of the row, and small ones beside it."""
        free = {site: [f"{site}/{node}" for node in range(self.nodes())] for site in self.sites()}
        first = self._job(self.row["pipeline"], self.row["data"], self.row["tensor"], free)
        self.microbatches = first["microbatches"]
        self.first_site = first.get("placement", self.sites())[0].partition("/")[0]
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
            "iterations": self._iterations(),
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
                case "action" | "microbatch":
                    wider = self.draw.uniform(1.05, 1.6)
                    ends = [median * wider for median in medians]
                    return {"median": said(medians), "p95": said(ends), "each": self.row["varying"]}
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
        """The row's own, and those to compare it with, or to swap to."""
        first, adapt = self.row["schedule"], self.row["adapt"]
        if self.row["fails"] == "elastic" or adapt == "starts":
            return [first]
        at = {name: family(name).placement for name in OPTIONS["schedule"] if name != first}
        if not adapt:
            return [first, *self.draw.sample(list(at), self.schedules - 1)]
        moved = [name for name, placement in at.items() if placement != family(first).placement]
        kept = [name for name in at if name not in moved]
        return [first, *self.draw.sample(kept, 2), *(self.draw.sample(moved, 1) if adapt == "stages" else [])]

    def _iterations(self) -> int:
        row = self.row
        if row["adapt"] in NEW["adapt"]:
            return 13  # four swaps
        if row["fails"] in ("neighbour", "elastic", "cuts"):
            return 8
        return 6 if row["adapt"] else 4 if row["event"] or row["happens"] or row["fails"] else 2

    def happens(self) -> list[str]:
        """What becomes of the first link, or of a rank, in an iteration."""
        link, draw, found = f"link {self.link()}", self.draw, list[str]()
        if self.row["adapt"] == "routes" and self.fastest:
            found.append(f"link {self.fastest} rate 10 % at iteration 2 to 8")
        latest_ms = 5 if self.row["event"] == "lose" else 80  # an outage is to be over before its link is lost
        inside = f"at iteration 1 + {draw.randint(0, latest_ms)} ms"
        least_s = min(self.delays_s, default=0.0)
        match self.row["happens"]:
            case "rate":
                found.append(f"{link} rate {draw.randint(40, 90)} % {inside}")
            case "delay":
                found.append(f"{link} delay x{draw.uniform(1.2, 3):.2f} {inside}")
            case "outage":
                found.append(f"{link} down for {draw.randint(3, 3 + latest_ms // 2)} ms {inside}")
            case "loss":
                found.append(f"{link} loss {draw.uniform(1, 8):.3f} % {inside} for {draw.randint(20, 200)} ms")
            case "jitter":
                jitter = self._time(least_s * draw.uniform(0.1, 0.8))
                found.append(f"{link} jitter {jitter} {inside} for {draw.randint(20, 200)} ms")
            case "slower rank":
                named = "job " if self.row["jobs"] > 1 else ""
                rank = draw.randrange(self.row["pipeline"] * self.row["data"] * self.row["tensor"])
                found.append(f"{named}rank {rank} slower x{draw.uniform(1.1, 2):.2f} at iteration 1 to 3")
        return found

    def link(self) -> str:
        """The name of the first one."""
        first = f"{SITES[0]}--{SITES[1]}"
        return {"clos": "pod-spine1", "parallel": "south"}.get(self.row["network"], first)

    def traffic(self) -> list[tuple[str, str, str, str]]:
        """Rows of a file of background traffic: a fifth of the slowest link at most, or of what events leave of it."""
        if not self.row["traffic"]:
            return []
        share = 0.02 if self.row["adapt"] == "routes" else 0.2
        most_bps = min([300e6, *(share * bps for bps in self.rates_bps)])
        source, target, *_ = self.sites()
        ends = source, target
        found = [(*ends, f"{most_bps * self.draw.uniform(0.2, 0.9):.0f} bit/s", "0 s")]
        if self.row["traffic"] == "changing":
            found.append((*ends, f"{most_bps * self.draw.uniform(0.2, 0.9):.0f} bit/s", self._time(0.15)))
        return found

    def words(self) -> dict[str, Any]:
        """What a command is told beside files, by option: a text, several of them, or True for a flag."""
        row, draw, job = self.row, self.draw, self._last_job()
        found: dict[str, Any] = {"--event": self.happens(), "--policy": [row["policy"]] if row["policy"] else None}
        found |= {"--rounds": "free" if row["rounds"] == "free" else None, "--enforce": row["enforce"]}
        found["--lose"] = [f"{self.link()}@2"] if row["event"] == "lose" else None
        found |= {f"--{event}": [f"{job}@2"] if row["event"] == event else None for event in ("arrive", "depart")}
        vary = {
            "microbatches": f"microbatches={2 * self.microbatches}",
            "routes": "routes=2",
            "stages": "stages",
            "starts": "starts=8",
        }
        controller = (
            RESTLESS if row["adapt"] in NEW["adapt"] else "ski-rental"
        )  # who has a reason to swap mostly does not
        found |= {"--alone": row["alone"] or None, "--adapt": controller if row["adapt"] else None}
        found["--vary"] = [vary[row["adapt"]]] if row["adapt"] in vary else None
        rank = draw.randrange(row["pipeline"] * row["data"] * row["tensor"]) if row["fails"] else None
        match row["fails"]:
            case True:
                found |= {"--checkpoint": "every=2,save=30 ms,restart=1500 ms", "--failure": [f"rank {rank} at 0.15 s"]}
            case "neighbour":
                saved = f"every=2,to=neighbour,save={draw.randint(0, 40)} ms,restart=1500 ms,disk=4,disk-save=50 ms"
                chaos = f"mtbf={draw.uniform(2, 5):.2f} s,seed={draw.randrange(1000)},of=nodes"
                found |= {"--checkpoint": saved, "--chaos": chaos, "--failure": [f"rank {rank} at 0.15 s"]}
            case "elastic":
                again = f"restart={draw.uniform(1.5, 3):.2f} s,repair={draw.uniform(0.5, 3):.2f} s"
                again += f",every={draw.randint(1, 3)}" if row["exchange"].startswith("zero-1") else ""
                found |= {"--elastic": again, "--failure": [f"rank {rank} at {draw.uniform(0.05, 0.15):.3f} s"]}
            case "cuts":
                lasts = f"{draw.randint(50, 600)} ms"
                chaos = f"mtbf={draw.uniform(2, 4):.2f} s,seed={draw.randrange(1000)},of=cuts,for={lasts}"
                cut = f"datacenter {self.first_site} cut off at {draw.uniform(0.05, 0.15):.3f} s for {lasts}"
                saved = f"every=2,save=30 ms,restart=1500 ms,notice={draw.randint(100, 400)} ms"
                found |= {"--checkpoint": saved, "--chaos": chaos, "--failure": [cut]}
        return {name: given for name, given in found.items() if given}

    def _last_job(self) -> str:
        """As a plan calls jobs of one name."""
        return "job" if self.row["jobs"] == 1 else f"job-{self.row['jobs']}"
