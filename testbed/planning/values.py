"""Single values of a plan.json, held against the rules of the files that plans are made from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import NamedTuple

from testbed.errors import BadInput, naming_files
from testbed.full_scale import similitude
from testbed.full_scale.similitude import LEAST_RATE_BPS, MOST_RATE_BPS, Scales
from testbed.plan.background import most_bps
from testbed.plan.framing import LARGEST_GSO, MTU
from testbed.plan.network_state import NetworkState, planned
from testbed.plan.plan import Background, Plan
from testbed.plan.routes import datacenters_of
from testbed.plan.timeline import LinkEvent
from testbed.schedule.registry import FAMILIES, check_choice
from testbed.spec.choice import ScheduleChoice
from testbed.spec.document import validate
from testbed.spec.event_text import MOST_SECONDS
from testbed.spec.topology import (
    CARD,
    LEAST_CARD_RATE_BPS,
    MOST_CARD_DELAY_S,
    MOST_DELAY_S,
    MOST_JITTER_S,
    MOST_QUEUE,
    SMALLEST_QUEUE,
    Direction,
    Name,
)
from testbed.spec.topology import MOST_RATE_BPS as MOST_SPEC_RATE_BPS

_MOST_SEED = 2**63 - 1
_MOST_LABEL = 400
_MOST_HELD = 1e6
_MOST_COST_S = 1.0
_MOST_COST_S_PER_BYTE = 1e-6
"""A byte that takes longer than that would be the network, not the host."""
_ROUNDED = 1e-9
"""What a value that was scaled to the lab and back may be off."""


class _Wrong(NamedTuple):
    field: str
    value: object
    expected: str


def check_values(plan: Plan, source: str) -> None:
    """Raises BadInput, naming `source`, for the first value that no topology or workload could have led to."""
    validate(Name, plan.network.name, source, at="network.name")
    for number, job in enumerate(plan.jobs):
        validate(Name, job.name, source, at=f"jobs.{number}.name")
    with naming_files({job.workload.name: source for job in plan.jobs}):
        at = similitude.common_scales([job.workload for job in plan.jobs], plan.host_costs.gloo_bytes)
    for fault in _wrong(plan, at):
        raise BadInput.of(source, fault.field, fault.value, fault.expected)
    for field, choice in _choices(plan):
        if choice.schedule in FAMILIES.built_in:  # the package of another family may not be here: its rows are
            check_choice(choice, source, field)


def _choices(plan: Plan) -> Iterator[tuple[str, ScheduleChoice]]:
    for number, job in enumerate(plan.jobs):
        for index, listed in enumerate(job.workload.schedules):
            yield f"jobs.{number}.workload.schedules.{index}", listed
    for number, case in enumerate(plan.cases):
        for index, chosen in enumerate(case.jobs):
            yield f"cases.{number}.jobs.{index}.choice", chosen.choice


def _wrong(plan: Plan, at: Scales | None) -> Iterator[_Wrong]:
    yield from _wrong_costs(plan)
    yield from _wrong_network(planned(plan.network), len(plan.network.routes), at)
    if plan.framing.mtu != MTU:
        yield _Wrong("framing.mtu", plan.framing.mtu, f"{MTU}, as every lab has")
    names = datacenters_of(plan.network)
    sizes = plan.framing.gso_bytes
    if set(sizes) != set(names):
        yield _Wrong("framing.gso_bytes", list(sizes), f"a size for each of {', '.join(names)}")
    for name, size in sizes.items():
        if not MTU <= size <= LARGEST_GSO:
            yield _Wrong(f"framing.gso_bytes.{name}", size, f"{MTU} to {LARGEST_GSO} bytes")
    for field, seed in (("seed", plan.seed), ("clock.seed", plan.clock.seed)):
        if not 0 <= seed <= _MOST_SEED:
            yield _Wrong(field, seed, f"0 to {_MOST_SEED}")
    for number, event in enumerate(plan.events):
        yield from _wrong_event(event, f"events.{number}") if isinstance(event, LinkEvent) else ()
    for number, flow in enumerate(plan.background):
        yield from _wrong_flow(flow, f"background.{number}")
    for number, case in enumerate(plan.cases):
        if not (case.label.strip() and case.label.isprintable() and len(case.label) <= _MOST_LABEL):
            yield _Wrong(f"cases.{number}.label", case.label, f"a label of 1 to {_MOST_LABEL} printable characters")
    for number, job in enumerate(plan.jobs):
        profiles = () if job.profile is None else (("few", job.profile.held_few), ("many", job.profile.held_many))
        for name, held in profiles:
            if not (len(held) == job.mesh.pp and all(0 <= microbatches <= _MOST_HELD for microbatches in held)):
                yield _Wrong(
                    f"jobs.{number}.profile.held_{name}", list(held), f"a number for each of {job.mesh.pp} ranks"
                )


def _wrong_event(event: LinkEvent, field: str) -> Iterator[_Wrong]:
    if not 0 <= event.at.seconds <= 2 * MOST_SECONDS:
        yield _Wrong(f"{field}.at.seconds", event.at.seconds, f"0 to {2 * MOST_SECONDS:g} s")
    if event.delay_s is not None and not 0 <= event.delay_s <= MOST_DELAY_S:
        yield _Wrong(f"{field}.delay_s", event.delay_s, f"0 to {MOST_DELAY_S:g} s")
    if event.rate_bps is not None and not LEAST_RATE_BPS <= event.rate_bps <= MOST_RATE_BPS:
        yield _Wrong(f"{field}.rate_bps", event.rate_bps, f"{LEAST_RATE_BPS:g} to {MOST_RATE_BPS:g} bit/s")

    if event.loss is not None and not 0 <= event.loss <= 1:
        yield _Wrong(f"{field}.loss", event.loss, "0 to 1")
    if event.jitter_s is not None and not 0 <= event.jitter_s <= MOST_DELAY_S:
        yield _Wrong(f"{field}.jitter_s", event.jitter_s, f"0 to {MOST_DELAY_S:g} s")


def _wrong_flow(flow: Background, field: str) -> Iterator[_Wrong]:
    rates = {"rate_bps": flow.rate_bps}
    rates |= {f"changes.{number}.rate_bps": change.rate_bps for number, change in enumerate(flow.changes)}
    for name, rate_bps in rates.items():
        if not 0 <= rate_bps <= MOST_RATE_BPS:
            yield _Wrong(f"{field}.{name}", rate_bps, f"0 to {MOST_RATE_BPS:g} bit/s")
    if most_bps(flow) == 0:
        yield _Wrong(f"{field}.rate_bps", flow.rate_bps, "more than 0 bit/s, at some time")
    times_s = [0.0, *(change.at_s for change in flow.changes)]
    for number, (before_s, at_s) in enumerate(pairwise(times_s)):
        if not before_s < at_s <= MOST_SECONDS:
            expected = f"more than {before_s:g} s, and {MOST_SECONDS:g} s at most"
            yield _Wrong(f"{field}.changes.{number}.at_s", at_s, expected)


def _wrong_costs(plan: Plan) -> Iterator[_Wrong]:
    for field in fields(plan.host_costs):
        value, name = getattr(plan.host_costs, field.name), f"host_costs.{field.name}"
        if field.name.endswith("_bytes"):
            most, unit = float(LARGEST_GSO), "bytes"
        elif field.name.endswith("_per_byte"):
            most, unit = _MOST_COST_S_PER_BYTE, "s for a byte"
        else:
            most, unit = _MOST_COST_S, "s"
        if not 0 <= value <= most:
            yield _Wrong(name, value, f"0 to {most:g} {unit}")


def _wrong_network(network: NetworkState, written: int, at: Scales | None) -> Iterator[_Wrong]:
    """`written`: how many routes the file has."""
    for index, link in enumerate(network.links):
        field = f"network.directions.{index}"
        yield from _wrong_rate(link, field)
        asked = link if at is None else similitude.full_scale_of(link, at)
        scale = "" if at is None else " at full scale"
        for name, value, least, most, unit in (
            ("delay_s", asked.delay_s, 0.0, MOST_DELAY_S, "s"),
            ("rate_bps", asked.rate_bps, 0.0, MOST_SPEC_RATE_BPS, "bit/s"),
            ("jitter_s", asked.jitter_s, 0.0, min(MOST_JITTER_S, asked.delay_s), "s, and no more than the delay"),
            ("queue_bytes", asked.queue_bytes, SMALLEST_QUEUE if asked.queue_bytes else 0.0, MOST_QUEUE, "bytes, or 0"),
            ("loss", asked.loss, 0.0, math.nextafter(1, 0), "of the packets"),
        ):
            if not least * (1 - _ROUNDED) <= value <= most * (1 + _ROUNDED) or (name == "loss" and value >= 1):
                yield _Wrong(f"{field}.{name}", getattr(link, name), f"{least:g} to {most:g} {unit}{scale}")
    for index, card in enumerate(network.cards):
        yield from _wrong_card(card, f"network.cards.{index}", at)
    if len(network.routes) != written + len(network.datacenters):
        yield _Wrong("network.routes", written, "one route for a pair of different datacenters")
    for name in network.datacenters:
        reached = network.routes_from(name)
        for other in network.datacenters:
            if other != name and other in reached and (name, other) not in network.routes:
                yield _Wrong("network.routes", f"none from {name} to {other}", "a route of every connected pair")


def _wrong_card(card: Direction, field: str, at: Scales | None) -> Iterator[_Wrong]:
    yield from _wrong_rate(card, field)
    asked = card if at is None else similitude.full_scale_of(card, at)
    if card.link != CARD:
        yield _Wrong(f"{field}.link", card.link, CARD)
    for name in ("queue_bytes", "jitter_s", "loss"):
        if getattr(card, name) != 0:
            yield _Wrong(f"{field}.{name}", getattr(card, name), "0, as every network card has")
    if not 0 <= asked.delay_s <= MOST_CARD_DELAY_S * (1 + _ROUNDED):
        yield _Wrong(f"{field}.delay_s", card.delay_s, f"0 to {MOST_CARD_DELAY_S:g} s")
    if not LEAST_CARD_RATE_BPS * (1 - _ROUNDED) <= asked.rate_bps <= MOST_SPEC_RATE_BPS * (1 + _ROUNDED):
        yield _Wrong(f"{field}.rate_bps", card.rate_bps, f"{LEAST_CARD_RATE_BPS:g} to {MOST_SPEC_RATE_BPS:g} bit/s")


def _wrong_rate(direction: Direction, field: str) -> Iterator[_Wrong]:
    if not LEAST_RATE_BPS <= direction.rate_bps <= MOST_RATE_BPS:
        yield _Wrong(f"{field}.rate_bps", direction.rate_bps, f"{LEAST_RATE_BPS:g} to {MOST_RATE_BPS:g} bit/s")
