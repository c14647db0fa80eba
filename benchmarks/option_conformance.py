"""Does every option mean the same everywhere? Model, relay and netem, real and virtual clock, as one Markdown table.

    python benchmarks/option_conformance.py [--only NAME]... [--real] [--vm] [--no-virtual] [--out DIR]

Each row is a small job with one option of a topology or a workload, measured once under both shapers on the virtual
clock (all in one boot); with --real under the relay on the real clock as well, with --vm under netem in Debian's
User-Mode Linux in real time. Where the model has the option all have to agree with it. Where it warns that it has not,
the shapers have to agree with each other. Of losses that are their number, held against chance: one more or less makes
an iteration a round trip longer. Of a queue that overflows it is that both drop, and leave the run untrusted: whether
the last packet of a burst is among them, which a microsecond decides, makes TCP wait for a timeout or not, and send
smaller bursts ever after. What no shaper can do is refused: the second table has the line that says so. Exit code 1
where something disagrees.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from harness import boots, options
from harness.options import ROOT
from harness.plans import with_every
from harness.record import Claim, Topic, each, finish

from testbed.errors import BadInput, MachineLacks
from testbed.lab.loss import likely_losses
from testbed.plan import costs
from testbed.plan.plan import Clock, Plan
from testbed.planning import file, resolve
from testbed.planning.left_out import warnings
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import load_workload
from testbed.thresholds import LOSS_CHANCE
from testbed.vm import command

WORKLOAD = ROOT / "workloads/tiny-gpt-pp4.yaml"

MODEL_VIRTUAL, MODEL_REAL = 0.001, 0.03
"""Share by which a measured time may differ from the model's."""
SHAPERS_VIRTUAL, SHAPERS_REAL = 0.02, 0.10
"""... from the other shaper's, where jitter or ordinary TCP decides."""
REAL_LIMIT_S = 300


class Option(NamedTuple):
    """A row: fields of the links (or whole sections), settings of the workload."""

    name: str
    link: Mapping[str, Any] = {}
    settings: Mapping[str, str] = {}
    topology: Mapping[str, Any] = {}


def _chain(**second: Any) -> dict[str, Any]:
    """Three datacenters in a row; the ends' traffic crosses both links."""
    first = {"between": ["paris", "vienna"], "delay": "4 ms", "rate": "1 Gbit/s"}
    then = {"between": ["vienna", "warsaw"], "delay": "3 ms", "rate": "500 Mbit/s", **second}
    nodes = {"paris": {"nodes": 2}, "vienna": {"nodes": 1}, "warsaw": {"nodes": 2}}
    return {"datacenters": nodes, "links": [first, then]}


_OVER_VIENNA = {"placement": "[paris/0, paris/1, warsaw/0, warsaw/1]"}
_PARALLEL = {
    "links": [
        {"name": "north", "between": ["paris", "warsaw"], "delay": "5 ms", "rate": "1 Gbit/s"},
        {"name": "south", "between": ["paris", "warsaw"], "delay": "8 ms", "rate": "300 Mbit/s"},
    ],
    "routes": [{"from": "paris", "to": "warsaw", "via": ["south"]}],
}

OPTIONS = (
    Option("as it is"),
    Option("delay 20 ms", {"delay": "20 ms"}),
    Option("rate 100 Mbit/s", {"rate": "100 Mbit/s"}),
    Option("way back slower and longer", {"reverse": {"delay": "12 ms", "rate": "300 Mbit/s"}}),
    Option("queue with room", {"queue": "2 MB"}),
    Option("queue that overflows", {"queue": "150 kB"}),
    Option("queue below a super-packet", {"queue": "30 kB"}),
    Option("queue of two frames", {"queue": "18028 B"}),
    Option("loss 1 %", {"loss": 0.01}),
    Option("loss 1 % one way", {"forward": {"loss": 0.01}}),
    Option("jitter 0.5 ms", {"jitter": "500 us"}),
    Option("jitter as long as the delay", {"jitter": "5 ms"}),
    Option("several hops", topology=_chain(), settings=_OVER_VIENNA),
    Option("several hops one of them lossy", topology=_chain(loss=0.005), settings=_OVER_VIENNA),
    Option("parallel links of unequal rate", topology=_PARALLEL),
    Option("receives late", settings={"receives": "late"}),
    Option("recompute", settings={"recompute": "true"}),
    Option("transport tcp-default", settings={"transport": "tcp-default"}),
    Option("memory 2", settings={"schedules": "[{schedule: crosspipe-greedy, memory: 2}]"}),
    Option("sub-blocks", settings={"schedules": "[{schedule: crosspipe-greedy, n_sub: 4}]"}),
    Option(
        "all that the model has",
        topology=_chain(queue="1 MB", reverse={"delay": "6 ms", "rate": "300 Mbit/s"}),
        settings=_OVER_VIENNA | {"receives": "late", "recompute": "true"},
    ),
    Option("loss and jitter one way", {"forward": {"loss": 0.02, "jitter": "500 us"}}),
)

REFUSED = (
    Option("loss 100 %", {"loss": 1}),
    Option("queue 0", {"queue": "0 B"}),
    Option("queue of one frame", {"queue": "9014 B"}),
    Option("jitter above the delay", {"jitter": "6 ms"}),
    Option("rate 0", {"rate": "0 bit/s"}),
    Option("a negative delay", {"delay": "-1 ms"}),
)
"""No shaper gets these."""


def plan_of(option: Option, clock: str = "virtual") -> Plan:
    """The plan of a row: 4 stages, 4 microbatches of 300 kB, 2 + 2 nodes, 5 ms, 1 Gbit/s. Raises BadInput."""
    link = {"between": ["paris", "warsaw"], "delay": "5 ms", "rate": "1 Gbit/s", **option.link}
    nodes = {"paris": {"nodes": 2}, "warsaw": {"nodes": 2}}
    document = {"name": "conformance", "datacenters": nodes, "links": [link], **option.topology}
    settings = {
        "microbatches": "4",
        "message": "300 kB",
        "schedules": "[1f1b]",
        "warmup": "1",
        "iterations": "1" if clock == "virtual" else "5",
        **option.settings,
    }
    workload = load_workload(WORKLOAD, settings)
    plan = resolve.make_plan(validate(Topology, document, option.name), workload)
    return resolve.with_clock(with_every(plan), Clock("virtual" if clock == "virtual" else "real"))


class Counted(NamedTuple):
    """One direction of a link in one place."""

    label: str
    loss: float
    """As asked, a share."""
    arrived: int
    lost: int
    dropped: int


class Measured(NamedTuple):
    """A row's job in one place."""

    seconds: float
    """Median iteration time."""
    trusted: bool


@dataclass(frozen=True)
class Row:
    """What came of an option."""

    option: str
    predicted_s: float
    warned: tuple[str, ...]
    measured: Mapping[str, Measured | None]
    """By place ("relay, virtual"); None where it failed."""
    counted: Mapping[str, tuple[Counted, ...]]
    """By place."""

    def disagreements(self) -> list[str]:
        """What differs by more than it may; [] where all is as it should be."""
        failed = [f"{place}: failed" for place, one in self.measured.items() if one is None]
        if self.overflows:
            return failed + self._of_drops()
        if self.lossy:
            return failed + self._of_losses()
        return failed + (self._of_shapers() if self.warned else self._of_model())

    @property
    def overflows(self) -> bool:
        """Whether the plan itself says that a queue is too small."""
        return any("queue overflows" in line for line in self.warned)

    @property
    def lossy(self) -> bool:
        """Whether losses are asked for."""
        return any(one.loss for directions in self.counted.values() for one in directions)

    def good(self) -> str:
        """What to say where nothing disagrees."""
        if self.overflows:
            return "both drop, untrusted"
        if self.lossy:
            return "losses as chance allows"
        return "shapers agree" if self.warned else "agree"

    def seconds(self) -> dict[str, float]:
        """Median iteration time by place, of those that did not fail."""
        return {place: one.seconds for place, one in self.measured.items() if one is not None}

    def _of_model(self) -> list[str]:
        found = []
        for place, seconds in self.seconds().items():
            off = seconds / self.predicted_s - 1
            if abs(off) > (MODEL_VIRTUAL if place.endswith("virtual") else MODEL_REAL):
                found.append(f"{place}: {off:+.2%} from the model")
        return found

    def _of_shapers(self) -> list[str]:
        found = []
        for kind, limit in (("virtual", SHAPERS_VIRTUAL), ("real", SHAPERS_REAL)):
            times = [s for place, s in self.seconds().items() if place.endswith(kind)]
            if len(times) > 1 and max(times) / min(times) - 1 > limit:
                found.append(f"the shapers differ by {max(times) / min(times) - 1:.1%} ({kind} clock)")
        return found

    def _of_drops(self) -> list[str]:
        found = []
        for place, directions in self.counted.items():
            one = self.measured[place]
            if not sum(direction.dropped for direction in directions):
                found.append(f"{place}: nothing dropped")
            if one is not None and one.trusted:
                found.append(f"{place}: trusted all the same")
        return found

    def _of_losses(self) -> list[str]:
        found = []
        for place, directions in self.counted.items():
            for one in directions:
                fewest, most = likely_losses(one.arrived + one.lost, one.loss, LOSS_CHANCE) if one.loss else (0, 0)
                if not fewest <= one.lost <= most:
                    found.append(f"{place}: {one.label} lost {one.lost}, by chance it is {fewest} to {most}")
        return found

    def lost_and_dropped(self) -> str:
        """For the table: per place, over all directions."""
        texts = []
        for place, directions in self.counted.items():
            lost, dropped = (sum(getattr(one, what) for one in directions) for what in ("lost", "dropped"))
            if lost or dropped:
                texts.append(f"{place.partition(',')[0]} {lost}/{dropped}")
        return ", ".join(texts) or "-"


def measure_virtual(asked: Sequence[Option], out: Path) -> dict[str, dict[str, dict[str, Any] | None]]:
    """option -> place -> comparison, under both shapers in one boot."""
    places = [(option, shaper) for option in asked for shaper in ("relay", "netem")]
    trainings = [
        command.GuestTraining(plan_of(option), directory(out, option, f"{shaper}, virtual"), shaper, quiet=True)
        for option, shaper in places
    ]
    documents = boots.in_a_boot(trainings, limit_s=3600, quiet=False)
    found: dict[str, dict[str, dict[str, Any] | None]] = {option.name: {} for option in asked}
    for (option, shaper), document in zip(places, documents, strict=False):
        found[option.name][f"{shaper}, virtual"] = document
    return found


def measure_real(option: Option, out: Path, shaper: str, *, vm: bool) -> dict[str, Any] | None:
    """The comparison of a row in real time; None where it failed."""
    place = directory(out, option, f"{shaper}, real")
    place.mkdir(parents=True, exist_ok=True)
    file.write(plan_of(option, "real"), place / "asked.json")
    words = ("run", str(place / "asked.json"), "--shaper", shaper, "--out", str(place / "run"), "--overwrite")
    try:
        return boots.run_testbed(*words, *(["--vm"] if vm else []), limit_s=REAL_LIMIT_S)[1]
    except subprocess.TimeoutExpired:
        return None


def directory(out: Path, option: Option, place: str) -> Path:
    """Where the results of a row go."""
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{option.name} {place}")
    return out / name


def results_of(out: Path, option: Option, place: str) -> Path:
    """The results directory of a row in a place."""
    return directory(out, option, place) / ("run" if place.endswith("real") else "")


def counted(plan: Plan, results: Path) -> tuple[Counted, ...]:
    """What a run's links.parquet says of the directions of links."""
    each = pd.read_parquet(results / "links.parquet")[["packets", "lost", "dropped"]].to_numpy().tolist()
    return tuple(
        Counted(asked.label, asked.loss, *map(int, counts))
        for asked, counts in zip(plan.network.directions, each, strict=False)
    )


def row_of(option: Option, found: Mapping[str, dict[str, Any] | None], results: Mapping[str, Path]) -> Row:
    """The row of what was measured, by place, from its results directories."""
    plan = plan_of(option)
    schedule = costs.schedule_of(plan, plan.cases[0])
    assert schedule is not None
    predicted_s = costs.predict_case(plan, plan.cases[0], schedule).makespans()[0]
    measured = {
        place: Measured(one["schedules"][0]["measured_s"], one["schedules"][0]["trusted"]) if one else None
        for place, one in found.items()
    }
    counts = {place: counted(plan, results[place]) for place, one in found.items() if one is not None}
    return Row(option.name, float(predicted_s), tuple(warnings(plan)), measured, counts)


def refusals() -> dict[str, str | None]:
    """What is said to each of REFUSED; None where nothing is."""
    said: dict[str, str | None] = {}
    for option in REFUSED:
        try:
            plan_of(option)
            said[option.name] = None
        except BadInput as error:
            said[option.name] = str(error)
    return said


def as_markdown(rows: Sequence[Row], places: Sequence[str]) -> str:
    """The first table."""
    lines = [
        f"| option | model | {' | '.join(places)} | lost/dropped | the model leaves out | verdict |",
        f"| --- | ---: |{' ---: |' * len(places)} --- | --- | --- |",
    ]
    for row in rows:
        cells = []
        for place in places:
            seconds = row.seconds().get(place)
            if seconds is None:
                cells.append("failed" if place in row.measured else "not run")
            else:
                cells.append(f"{seconds * 1e3:.2f} ms ({seconds / row.predicted_s - 1:+.2%})")
        verdict = "; ".join(row.disagreements()) or row.good()
        left_out = "; ".join(line.partition(" (")[0].partition(",")[0] for line in row.warned) or "-"
        lines.append(
            f"| {row.option} | {row.predicted_s * 1e3:.2f} ms | {' | '.join(cells)} | {row.lost_and_dropped()} "
            f"| {left_out} | {verdict} |"
        )
    return "\n".join(lines)


def claims_of(rows: Sequence[Row], said: Mapping[str, str | None]) -> list[Claim]:
    """That options mean the same everywhere, by what has to agree with what; and that others are refused."""
    overflows, lossy = [row for row in rows if row.overflows], [row for row in rows if row.lossy]
    rest = [row for row in rows if not (row.overflows or row.lossy)]
    modelled = [row for row in rest if not row.warned]
    groups = {
        "options of the model, under relay and netem: as the model": modelled,
        "options that the model leaves out: relay and netem alike": [row for row in rest if row.warned],
        "losses under relay and netem: as chance allows": lossy,
        "queues that overflow under relay and netem: drops, untrusted": overflows,
    }
    off = [abs(seconds / row.predicted_s - 1) for row in modelled for seconds in row.seconds().values()]
    claims = [
        each(
            what,
            sum(map(bool, map(Row.disagreements, of))),
            len(of),
            unit="options",
            more=f", within {max(off):.4%}" if of is modelled and off else "",
        )
        for what, of in groups.items()
        if of
    ]
    if overflows:
        dropped = [[sum(one.dropped for one in directions) for directions in row.counted.values()] for row in overflows]
        got = "; ".join(f"{row.option}: {' and '.join(map(str, n))}" for row, n in zip(overflows, dropped, strict=True))
        same = all(len(set(counts)) == 1 for counts in dropped)
        claims.append(Claim("the same queues: relay and netem", "drop as many", got, same))
    return [*claims, each("options that no shaper can do are refused", list(said.values()).count(None), len(said))]


def main() -> int:
    """Measure, print both tables, write them to --out; see the module's text for the result."""
    parser = options.parser(__doc__)
    parser.add_argument("--only", action="append", default=[], help="name of a row")
    parser.add_argument("--real", action="store_true", help="the real clock as well: wants a quiet machine")
    parser.add_argument("--no-virtual", action="store_true", help="leave out the virtual clock: the quiet is short")
    parser.add_argument("--vm", action="store_true", help="netem in User-Mode Linux in real time as well")
    options.add_out(parser, "option-conformance", recorded=False)
    asked = parser.parse_args()
    chosen = [option for option in OPTIONS if not asked.only or option.name in asked.only]
    found: dict[str, dict[str, dict[str, Any] | None]] = {option.name: {} for option in chosen}
    places, missing = [], []
    if not asked.no_virtual:
        found, places = measure_virtual(chosen, asked.out), ["relay, virtual", "netem, virtual"]
    if asked.vm:
        try:
            command.choose_machine(Clock("real"))
        except MachineLacks as lack:
            missing.append(f"netem on the real clock was not run: {lack}")
    for shaper, wanted in (("relay", asked.real), ("netem", asked.vm and not missing)):
        for option in chosen if wanted else ():
            found[option.name][f"{shaper}, real"] = measure_real(option, asked.out, shaper, vm=shaper == "netem")
        places += [f"{shaper}, real"] if wanted else []
    rows = []
    for option in chosen:
        results = {place: results_of(asked.out, option, place) for place in found[option.name]}
        rows.append(row_of(option, found[option.name], results))
    said = refusals()
    second = ["| refused | what is said |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in said.items())]
    text = "\n\n".join([as_markdown(rows, places), "\n".join(second), *missing])
    print(text)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "option-conformance.md").write_text(text + "\n", encoding="utf-8")
    clock = " and ".join(sorted({place.partition(", ")[2] for place in places}))
    directories = [results_of(asked.out, option, place) for option in chosen for place in places]
    return finish(asked, Topic.TRUTH, claims_of(rows, said), clock=clock, directories=directories)


if __name__ == "__main__":
    sys.exit(main())
