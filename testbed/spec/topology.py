"""A DC-OTN network as a file: datacenters, and the optical links that join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from testbed.errors import BadInput, listed
from testbed.spec.clos import ClosSpec, spelt_out
from testbed.spec.document import (
    Document,
    FieldError,
    Matching,
    StrictModel,
    WrittenAs,
    override,
    plain,
    read_yaml,
    validate,
)
from testbed.spec.event_text import MOST_SECONDS, EventText, blamed_on, check_names, read_event
from testbed.spec.quantity import Share, bits_per_second, metres, seconds, size_bytes
from testbed.units import FIBRE_SECONDS_PER_METRE, show_time

MAX_DATACENTERS = 100
MAX_NODES_PER_DATACENTER = 100
MOST_RATE_BPS = 1e15
"""Of a link or network card at full scale; what a lab can have is checked when the plan is made."""

MAX_EVENTS, MAX_BACKGROUND = 1000, 10_000
EVENT_WORDS = "an event as `link NAME rate 60 % at iteration 4`"

MAX_LINKS = 5000
"""Of every pair of 100 datacenters one, and some."""

MOST_FIBRE_M, MOST_OWN_DELAY_S, MOST_EQUIPMENT_DELAY_S = 40_000e3, 10.0, 1.0
MOST_DELAY_S = MOST_FIBRE_M * FIBRE_SECONDS_PER_METRE + MOST_OWN_DELAY_S + MOST_EQUIPMENT_DELAY_S
"""Of a direction, one way: all three together."""
MOST_JITTER_S, MOST_QUEUE = 1.0, 4e9
LEAST_MEMORY, MOST_MEMORY = 16 * 2.0**20, 2.0**50
LEAST_CARD_RATE_BPS, MOST_CARD_DELAY_S = 1e6, 10e-3

SMALLEST_QUEUE = 18_028
"""Bytes of two full frames: with room for one, nanoseconds decide whether it fits behind one that is just leaving."""

Name = Annotated[
    str, Matching("[a-z][a-z0-9-]{0,29}", "lower-case letters, digits and hyphens, a letter first, at most 30")
]
"""Lower case, digits and hyphens: safe as a host name; never part of a shell command all the same."""


class InsideSpec(StrictModel):
    """The network inside a datacenter: what every node's network card does to what leaves the node."""

    delay: Annotated[float, seconds(0, MOST_CARD_DELAY_S)] = Field(
        default=0.0, description="one way, from a node to its neighbour or border"
    )
    rate: Annotated[float, bits_per_second(LEAST_CARD_RATE_BPS, MOST_RATE_BPS)] = Field(
        description="of whatever leaves the node, headers included"
    )


class DatacenterSpec(StrictModel):
    """One site. Without `inside` its nodes are joined as fast as the host can."""

    nodes: int = Field(
        ge=0, le=MAX_NODES_PER_DATACENTER, description="containers that can hold a stage; 0: it only passes traffic on"
    )
    inside: InsideSpec | None = Field(default=None, description="a network card for every node; default: none")
    memory: Annotated[float, size_bytes(LEAST_MEMORY, MOST_MEMORY)] | None = Field(
        default=None, description="that all ranks on one node may have together; default: the machine's"
    )
    cpus: float | None = Field(
        default=None, ge=0.01, le=1024, description="processors for all ranks on one node together; default: any"
    )


class ClosSite(StrictModel):
    """Leaves, spines and their links in place of one site, as a file may have them."""

    clos: ClosSpec = Field(description="a two-layer Clos")
    inside: InsideSpec | None = Field(default=None, description="a network card for every host; default: none")


class DirectionSpec(StrictModel):
    """What may be said of one direction of a link; None leaves it as the link says."""

    fibre: Annotated[float, metres(0, MOST_FIBRE_M)] | None = Field(default=None, description="5 us/km one way")
    delay: Annotated[float, seconds(0, MOST_OWN_DELAY_S)] | None = Field(
        default=None, description="more one-way delay, beside or instead of fibre"
    )
    equipment_delay: Annotated[float, seconds(0, MOST_EQUIPMENT_DELAY_S)] | None = Field(
        default=None, description="more one-way delay: regeneration, OTN boxes"
    )
    rate: Annotated[float, bits_per_second(1e3, MOST_RATE_BPS)] | None = Field(
        default=None, description="on the wire, headers included"
    )
    queue: Annotated[float, size_bytes(SMALLEST_QUEUE, MOST_QUEUE)] | None = Field(
        default=None, description="room for bytes that wait for the wire; default: enough never to drop"
    )
    jitter: Annotated[float, seconds(0, MOST_JITTER_S)] | None = Field(
        default=None, description="by up to so much more or less each packet is delayed"
    )
    loss: Annotated[float | None, Share("packets lost")] = Field(default=None, description="share of packets lost")


def _both_directions(schema: dict[str, Any]) -> None:
    """JSON Schema of what both directions need, from the link or each for itself."""

    def given(*names: str) -> dict[str, Any]:
        no_null = {"not": {"type": "null"}}
        return {"anyOf": [{"required": [name], "properties": {name: no_null}} for name in names]}

    def both(needed: dict[str, Any]) -> dict[str, Any]:
        each = {"required": ["forward", "reverse"], "properties": {"forward": needed, "reverse": needed}}
        return {"anyOf": [*needed["anyOf"], each]}

    schema["allOf"] = [both(given("rate")), both(given("fibre", "delay"))]


class LinkSpec(DirectionSpec):
    """One undirected OTN connection; `forward` is the direction in which `between` names its ends."""

    model_config = ConfigDict(json_schema_extra=_both_directions)

    between: tuple[Name, Name] = Field(description="the datacenters, leaves or spines that it joins")
    name: Name | None = Field(default=None, description="needed for parallel links; default: its ends, joined by --")
    forward: DirectionSpec = Field(default=DirectionSpec(), description="what is else in the order of between")
    reverse: DirectionSpec = Field(default=DirectionSpec(), description="what is else in the other direction")

    @model_validator(mode="after")
    def _complete(self) -> LinkSpec:
        if self.between[0] == self.between[1]:
            raise FieldError("between", list(self.between), "two different datacenters")
        for side in ("forward", "reverse"):
            if self._value(side, "rate") is None:
                raise FieldError("rate", None, "a rate for both directions")
            if self._value(side, "fibre") is None and self._value(side, "delay") is None:
                raise FieldError("fibre", None, "fibre, delay or both")
            direction = self.direction(side)
            if direction.jitter_s > direction.delay_s:
                expected = (
                    f"at most the {side} delay, {show_time(direction.delay_s)}: nothing arrives before it is sent"
                )
                raise FieldError("jitter", show_time(direction.jitter_s), expected)
        return self

    def _value(self, side: str, field: str) -> float | None:
        own: float | None = getattr(getattr(self, side), field)
        whole: float | None = getattr(self, field)
        return whole if own is None else own

    def resolved_name(self) -> str:
        """The given name, or the two ends joined."""
        return self.name or "--".join(self.between)

    def unordered_name(self) -> str:
        """As `resolved_name`, the same for a link that is given from its other end."""
        name = self.resolved_name()
        ends = {"--".join(self.between), "--".join(reversed(self.between))}
        return min(ends) if name in ends else name

    def direction(self, side: str) -> Direction:
        """The direction `side` ("forward" or "reverse") with every value in SI units."""
        source, target = self.between if side == "forward" else self.between[::-1]
        value = {field: self._value(side, field) or 0.0 for field in DirectionSpec.model_fields}
        return Direction(
            link=self.resolved_name(),
            source=source,
            target=target,
            delay_s=value["fibre"] * FIBRE_SECONDS_PER_METRE + value["delay"] + value["equipment_delay"],
            rate_bps=value["rate"],
            queue_bytes=value["queue"],
            jitter_s=value["jitter"],
            loss=value["loss"],
        )


class Direction(NamedTuple):
    """One direction of a link, as the model and the lab see it."""

    link: str
    source: str
    target: str
    delay_s: float
    """One-way: fibre at 5 us/km, plus `delay`, plus `equipment_delay`."""
    rate_bps: float
    """Bits per second on the wire, headers included."""
    queue_bytes: float
    """Room for bytes that wait for the wire, beyond those in flight; 0 = derive it from the traffic."""
    jitter_s: float
    loss: float

    @property
    def label(self) -> str:
        """How people see it, e.g. "berlin->madrid"; the link's own name is added where it has one."""
        ends = f"{self.source}->{self.target}"
        plain = {f"{self.source}--{self.target}", f"{self.target}--{self.source}"}
        return ends if self.link in plain else f"{ends} ({self.link})"


CARD = "card"
"""What stands for a link's name where a direction is a node's network card."""


class RouteSpec(StrictModel):
    """The links that traffic from one datacenter to another takes, instead of those that the policy would choose.

    The one back is another route.
    """

    source: Name = Field(alias="from", description="the datacenter that sends")
    target: Name = Field(alias="to", description="the datacenter that receives")
    via: tuple[Name, ...] = Field(min_length=1, description="names of links, in order")


class BackgroundSpec(StrictModel):
    """What one datacenter sends another one beside the jobs, from a time on until a later row of the same two."""

    source: Name = Field(alias="from", description="the datacenter that sends")
    target: Name = Field(alias="to", description="the datacenter that receives, over the default route")
    rate: Annotated[float, bits_per_second(0, MOST_RATE_BPS)] = Field(
        description="on the wire, headers included; 0 bit/s: it pauses"
    )
    at: Annotated[float, seconds(0, MOST_SECONDS)] = Field(
        default=0.0, description="while jobs train, since the first iteration that counts has begun"
    )


class Topology(StrictModel):
    """Datacenters and links. Order matters: contiguous placement fills datacenters as they are listed."""

    name: Name = Field(description="what results and tables call the network")
    description: str = Field(default="", description="free text")
    datacenters: dict[Name, Annotated[DatacenterSpec, WrittenAs(DatacenterSpec | ClosSite)]] = Field(
        min_length=1, max_length=MAX_DATACENTERS, description="by name, in the order in which pipelines fill them"
    )
    links: tuple[LinkSpec, ...] = Field(default=(), max_length=MAX_LINKS, description="each with two directions")
    routes: tuple[RouteSpec, ...] = Field(default=(), description="default: the least delay between every pair")
    events: tuple[Annotated[str, Matching("((link|datacenter) .*|.*rank .*) at .*", EVENT_WORDS)], ...] = Field(
        default=(), max_length=MAX_EVENTS, description="what happens to links and ranks while jobs train, a line each"
    )
    background: tuple[BackgroundSpec, ...] = Field(
        default=(), max_length=MAX_BACKGROUND, description="traffic beside the jobs, as real datagrams in a run"
    )
    background_file: str | None = Field(
        default=None, description="more of it, in a CSV file with the columns from,to,rate, maybe at"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Topology:
        if not any(site.nodes for site in self.datacenters.values()):
            raise FieldError("datacenters", list(self.datacenters), "at least one that has nodes")
        names: dict[str, int] = {}
        for index, link in enumerate(self.links):
            for end in link.between:
                if end not in self.datacenters:
                    raise FieldError(
                        f"links.{index}.between", end, f"one of the datacenters ({listed(self.datacenters)})"
                    )
            first = names.setdefault(link.unordered_name(), index)
            if first != index:
                expected = f"a name that links.{first} has not (parallel links each need one)"
                raise FieldError(f"links.{index}.name", link.resolved_name(), expected)
        pairs: dict[tuple[str, str], int] = {}
        for index, route in enumerate(self.routes):
            first = pairs.setdefault((route.source, route.target), index)
            if first != index:
                pair = f"{route.source} -> {route.target}"
                raise FieldError(f"routes.{index}", pair, f"a pair that routes.{first} is not for")
        self.given_routes()
        for index, text in enumerate(self.events):
            try:
                self.event(text)
            except FieldError as error:
                raise FieldError(f"events.{index}", error.value, error.expected) from error
        return self

    def event(self, text: str) -> EventText:
        """What a line says that happens to these links. Raises FieldError without a field."""
        read = read_event(text)
        check_names(read, {link.resolved_name(): link.between for link in self.links})
        return read

    def given_routes(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """(source, target) -> indexes into `directions()` of the route that `routes` gives it. Raises FieldError."""
        if not self.routes:
            return {}
        leaving: dict[str, dict[str, tuple[int, str]]] = {name: {} for name in self.datacenters}
        for index, direction in enumerate(self.directions()):
            leaving[direction.source][direction.link] = index, direction.target
        return {
            (route.source, route.target): self._followed(f"routes.{number}", route, leaving)
            for number, route in enumerate(self.routes)
        }

    def _followed(
        self, field: str, route: RouteSpec, leaving: Mapping[str, Mapping[str, tuple[int, str]]]
    ) -> tuple[int, ...]:
        """The directions of one route; `leaving` has per datacenter and link the direction that leaves, and its end."""
        for end, name in (("from", route.source), ("to", route.target)):
            if name not in self.datacenters:
                raise FieldError(f"{field}.{end}", name, f"one of the datacenters ({listed(self.datacenters)})")
        at, taken, seen = route.source, [], {route.source}
        for number, link in enumerate(route.via):
            if link not in leaving[at]:
                raise FieldError(f"{field}.via.{number}", link, f"a link that leaves {at} ({listed(leaving[at])})")
            index, at = leaving[at][link]
            taken.append(index)
            if at in seen:
                raise FieldError(f"{field}.via.{number}", link, f"a route that does not come to {at} twice")
            seen.add(at)
        if at != route.target:
            raise FieldError(f"{field}.via", list(route.via), f"links that end in {route.target}, not in {at}")
        return tuple(taken)

    def nodes(self) -> list[str]:
        """Every node as "datacenter/number", in the order of the file."""
        return [f"{dc}/{n}" for dc, spec in self.datacenters.items() for n in range(spec.nodes)]

    def cards(self) -> list[Direction]:
        """The network cards of all nodes of datacenters with an `inside`, from the node to its datacenter."""
        found = []
        for name, spec in self.datacenters.items():
            if spec.inside is not None:
                delay_s, rate_bps = spec.inside.delay, spec.inside.rate
                for number in range(spec.nodes):
                    found.append(Direction(CARD, f"{name}/{number}", name, delay_s, rate_bps, 0.0, 0.0, 0.0))
        return found

    def directions(self) -> list[Direction]:
        """Both directions of every link: forward of the first, reverse of the first, and so on."""
        return [link.direction(side) for link in self.links for side in ("forward", "reverse")]


def with_events(topology: Topology, texts: Sequence[str]) -> Topology:
    """The topology with more events, as `--event` gives them. Raises BadInput."""
    for text in texts:
        try:
            topology.event(text)
        except FieldError as error:
            raise blamed_on("--event", text, error) from error
    return topology.model_copy(update={"events": (*topology.events, *texts)})


def load_topology(path: Path | Document, settings: dict[str, str] | None = None) -> Topology:
    """The topology in a file, or as a document, with `settings` (dotted key -> YAML text) laid over it.

    Raises BadInput, which names a document "topology".
    """
    source = str(path) if isinstance(path, Path) else "topology"
    written = read_yaml(path) if isinstance(path, Path) else plain(path, source)
    if "datacenters" not in written and {"schedules", "parallelism"} & written.keys():
        raise BadInput.of(source, "file", "a workload", "a topology (the order is TOPOLOGY WORKLOAD)")
    document = spelt_out(override(written, settings or {}, source), source)
    return validate(Topology, document, source)
