"""What netem makes of a link that changes: how far is each iteration off, where the relay is exact?

    python benchmarks/live_netem.py [--recorded] [--out DIR]

netem gives a packet its time as it comes. So a change of rate or delay is for what comes later; what waits keeps the
times of before, and what comes behind it waits for them. A run refuses netem with events for that; here its qdiscs are
changed all the same (benchmarks/parts/live_netem.py), on the virtual clock, with messages that wait for the link, and
each iteration is held against its prediction, beside the relay's.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

from events_on_the_wire import LIMITS, Iteration, iterations_of
from harness import boots, options, plans, report
from harness.options import ROOT
from harness.record import Claim, Topic, finish

from testbed.lab.shaping import RELAY
from testbed.plan.plan import Clock
from testbed.planning.prediction import predict_training
from testbed.planning.resolve import load_plan, with_clock
from testbed.vm import command

LIVE = f"{ROOT / 'benchmarks/parts/live_netem.py'}:LiveNetem"
SHAPERS = {"netem": LIVE, "relay": RELAY}
LINK = "link paris--warsaw"
EVENTS = {"slower": "rate 40 %", "faster": "rate 250 %", "longer": "delay 30 ms", "shorter": "delay 2 ms"}
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
    return command.GuestTraining(with_clock(plan, Clock("virtual")), out / name, SHAPERS[shaper])


def main() -> int:
    """Run all; 1 when the relay is not exact, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_out(parser, "live-netem")
    parser.set_defaults(per_boot=8)
    asked = parser.parse_args()
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
    worst = {
        shaper: max((one.across.missed for one in found if one.shaper == shaper), default=0.0) for shaper in SHAPERS
    }
    beside = {one.name: one.across.missed for one in found if one.shaper == "netem"}
    got = f"relay {worst['relay']:.4%}; netem {', '.join(f'{name} {missed:.2%}' for name, missed in beside.items())}"
    complete = len(found) == len(names)
    claim = Claim(
        "a link that changes while messages wait for it: relay and netem, the iteration in which it does",
        f"relay <= {LIMITS['virtual']:.2%}; netem not within it",
        got,
        complete and worst["relay"] <= LIMITS["virtual"] < worst["netem"],
        worst["netem"],
        "share of the prediction",
        len(found),
        len(names),
    )
    return finish(
        asked, Topic.TRUTH, [claim], clock="virtual", directories=[taken.out / name for name in taken.comparisons]
    )


if __name__ == "__main__":
    sys.exit(main())
