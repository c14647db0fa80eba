"""netem and relay while links change: does every iteration take what is predicted of it under each of them?

    python benchmarks/live_netem.py [--plans 20] [--first 0] [--seed 1] [--schedules 2] [--per-boot 10] [--recorded]
        [--out DIR]

netem gives a packet its time as it comes: a change of rate or delay is for what comes later. Under the relay it is for
all bytes that have not left. In an outage it keeps what comes, where the relay keeps all bytes that have not left. So
the same event makes another iteration under each, and the model has both. Seven events on topologies/two-dc-longhaul
come while messages wait for the link; each iteration is held against its prediction, and the two shapers' against each
other. Beside them the plans that benchmarks/events_on_the_wire.py draws, under netem; of one with an outage that is not
over in its iteration, which netem cannot play, without its outages. All under the virtual clock.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from events_on_the_wire import LIMITS, Iteration, documents, iterations_of, judged, shown
from harness import boots, options, plans, report
from harness.options import ROOT
from harness.record import Claim, Topic, finish

from testbed.errors import BadInput
from testbed.plan.plan import Clock
from testbed.planning.prediction import predict_training
from testbed.planning.resolve import load_plan, with_clock, with_shaper
from testbed.vm import command

SHAPERS = "netem", "relay"
LINK = "link paris--warsaw"
EVENTS = {
    "slower": "rate 40 %",
    "faster": "rate 250 %",
    "longer": "delay 30 ms",
    "shorter": "delay 2 ms",
    "outage": "down for 45.3 ms",
    "restored": "down for 45.3 ms then rate 40 %",
    "switched": "down for 45.3 ms then delay 2 ms",
}
"""Of topologies/two-dc-longhaul, under messages that take 0.9 of a slot on the wire, when a third has left of one for
which a rank waits."""
SETTINGS = ["message=2.2 MB", "microbatches=8", "warmup=1", "iterations=5"]
STEP_ROUND = 3


class Event(NamedTuple):
    """An event under one shaper."""

    name: str
    shaper: str
    across: Iteration
    """The iteration in which it comes."""
    others: float
    """The most by which any other is off."""


def training(event: str, shaper: str, name: str, out: Path) -> command.GuestTraining:
    """One schedule under one event."""
    files = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
    steady = plans.with_every(load_plan(*files, settings=SETTINGS), ["zb-h1"])
    messages = predict_training(steady, steady.cases[0]).trace.messages
    crossing = messages[(messages["source_rank"] == 1) & (messages["target_rank"] == 2)]
    awaited = crossing[crossing["awaited"]]
    under_way = awaited[len(awaited) // 2]
    wire_s = 8 * float(under_way["wire_bytes"]) / steady.network.directions[0].rate_bps
    at_s = float(under_way["sent_s"]) + wire_s / 3
    said = f"{LINK} {EVENTS[event]} at iteration 2 + {1e3 * at_s:.6f} ms"
    plan = plans.with_every(load_plan(*files, settings=SETTINGS, events=[said]), ["zb-h1"])
    return command.GuestTraining(with_clock(plan, Clock("virtual")), out / name, shaper)


def drawn(number: int, name: str, asked: Namespace, out: Path) -> command.GuestTraining:
    """A plan of a number under netem; without outages where it cannot play one of them."""
    topology, workload = documents(number, asked.seed, asked.schedules)
    try:
        return _under_netem(out, name, topology, workload)
    except BadInput as error:
        if "under netem" not in str(error):
            raise
    steps = [text for text in topology["events"] if " down for " not in text]
    if not any(text.startswith("link") for text in steps):
        first, *_ = topology["links"]
        steps.append(f"link {'--'.join(first['between'])} rate 43.7 % at iteration 1 + 77.31 ms")
    return _under_netem(out, name, topology | {"events": steps}, workload)


def _under_netem(out: Path, name: str, topology: plans.Document, workload: plans.Document) -> command.GuestTraining:
    """Raises BadInput for what netem cannot play."""
    made = replace(plans.training(out, name, topology, workload), shaper="netem")
    there = with_shaper(made.plan, "netem")
    for case in there.cases:
        predict_training(there, case)
    return made


def of_both(asked: Namespace) -> tuple[Claim, list[Path]]:
    """The seven events under both shapers."""
    names = {f"{event}-{shaper}": (event, shaper) for event in EVENTS for shaper in SHAPERS}
    taken = boots.take(asked, {name: partial(training, *which, name) for name, which in names.items()})
    found = []
    for name in taken.comparisons:
        each = iterations_of(name, taken.out / name, "zb-h1")
        across = next(one for one in each if one.number == STEP_ROUND)
        found.append(Event(*names[name], across, max(one.missed for one in each if one is not across)))
    cells = [
        (
            one.name,
            one.shaper,
            f"{one.across.predicted_s:.6f}",
            f"{one.across.measured_s:.6f}",
            f"{one.across.measured_s / one.across.predicted_s - 1:+.4%}",
            f"{one.others:.4%}",
        )
        for one in found
    ]
    heads = ("event", "shaper", "predicted s", "measured s", "error", "others, worst")
    report.show_table("the iteration in which a link changes", heads, cells)
    of = {(one.name, one.shaper): one.across.measured_s for one in found}
    apart = {
        event: of[event, "netem"] / of[event, "relay"] - 1
        for event in EVENTS
        if {(event, shaper) for shaper in SHAPERS} <= of.keys()
    }
    worst = max((max(one.across.missed, one.others) for one in found), default=1.0)
    unlike = ", ".join(f"{event} {share:+.1%}" for event, share in apart.items())
    claim = Claim(
        "a link that changes while messages wait for it, under netem and relay",
        f"each iteration <= {LIMITS['virtual']:.2%}",
        f"worst {worst:.4%}; that iteration under netem over the relay's: {unlike}",
        len(found) == len(names) and worst <= LIMITS["virtual"],
        worst,
        "share of the prediction",
        len(found),
        len(names),
    )
    return claim, [taken.out / name for name in taken.comparisons]


def of_drawn(asked: Namespace) -> tuple[Claim, list[Path]]:
    """Drawn plans under netem."""
    names = {f"netem-{number:03d}": number for number in options.numbers(asked)}
    taken = boots.take(asked, {name: partial(drawn, number, name, asked) for name, number in names.items()})
    found, untrusted = shown(taken)
    what = f"links that change under netem while jobs train, drawn with seed {asked.seed}, virtual clock"
    outages = sum(" down for " in (taken.out / f"{name}.topology.yaml").read_text() for name in names)
    claim = judged(f"{what} ({outages} with outages)", found, untrusted, "virtual", len(taken.comparisons), taken.asked)
    return claim, [taken.out / name for name in taken.comparisons]


def main() -> int:
    """1 where an iteration is not as predicted, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "live-netem", plans=20, per_boot=10, schedules=2)
    asked = parser.parse_args()
    (both, first), (many, others) = of_both(asked), of_drawn(asked)
    return finish(asked, Topic.TRUTH, [both, many], clock="virtual", directories=[*first, *others])


if __name__ == "__main__":
    sys.exit(main())
