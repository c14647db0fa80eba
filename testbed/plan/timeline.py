"""What happens while jobs train, and when: the kinds of events that a plan may have, each with its time.

A new kind is a subclass of `Event` in EVENT_KINDS, and touches no other file: it says what it does to the network, and
whether anybody can play it yet. A plan with one that nobody can play is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, PlainSerializer, PlainValidator, ValidationError, with_config

from testbed.errors import listed
from testbed.spec.document import FieldError, first_fault, validated

if TYPE_CHECKING:
    from testbed.plan.network_state import NetworkState
    from testbed.plan.plan import Case, Plan


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, order=True)
class Moment:
    """A time of a training."""

    iteration: int
    """Measured iterations since the training began: this one is at the beginning of the next."""
    seconds: float = 0.0
    """From the beginning of that iteration."""


BEGINNING = Moment(0)
"""Of a training: the first iteration that counts, and those before it that warm up."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Event:
    """What happens at a moment of every training of a plan. A job by itself (`--alone`) trains without events."""

    kind: ClassVar[str]
    """In plan.json."""
    option: ClassVar[str] = "--event"
    """What a command calls it."""
    of_jobs: ClassVar[bool] = False
    """Whether `name` is a job's; else it is one of the network's."""
    between_iterations: ClassVar[bool] = False
    """Whether model and lab play it at the beginning of an iteration: with it another case begins ..."""
    inside_iterations: ClassVar[bool] = False
    """... and whether they do at any other time."""
    at_beginnings: ClassVar[bool] = False
    """Whether they play it at the beginning of an iteration, and the same case goes on."""

    name: str
    """Of what it happens to."""
    at: Moment

    def on_network(self, network: NetworkState) -> NetworkState:
        """What links are after it. Raises BadInput, in the words of `network`, for a name that it has not."""
        return network

    def on_jobs(self, at_work: frozenset[str]) -> frozenset[str]:
        """The names of those that train after it."""
        return at_work

    def __str__(self) -> str:
        return f"{self.option} {self.name}@{self.at.iteration}"


class LinkLost(Event):
    """A link, or all links of a switch, are gone from then on."""

    kind = "link-lost"
    option = "--lose"
    between_iterations = True

    def on_network(self, network: NetworkState) -> NetworkState:
        """Without its directions; default routes that crossed them become those of least delay."""
        return network.without(self.name)


class JobArrives(Event):
    """A job that was not there begins to train."""

    kind = "job-arrives"
    option = "--arrive"
    of_jobs = True
    between_iterations = True

    def on_jobs(self, at_work: frozenset[str]) -> frozenset[str]:
        """With it."""
        return at_work | {self.name}


class JobDeparts(Event):
    """A job trains no more, and does not come back."""

    kind = "job-departs"
    option = "--depart"
    of_jobs = True
    between_iterations = True

    def on_jobs(self, at_work: frozenset[str]) -> frozenset[str]:
        """Without it."""
        return at_work - {self.name}


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class ScheduleSwapped(Event):
    """A job goes on with another schedule, with the weights, the optimizer and the data that it has."""

    kind = "schedule-swapped"
    option = "--swap"
    of_jobs = True
    between_iterations = True

    schedule: str
    """The label of the one that it goes on with."""

    def __str__(self) -> str:
        return f"{self.option} {self.schedule}@{self.at.iteration}"


AS_PLANNED = ()


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class FlowsMoved(Event):
    """All that a job sends from one datacenter to another takes another route from then on."""

    kind = "flows-moved"
    option = "--adapt"
    of_jobs = True
    between_iterations = True

    source: str
    target: str
    route: tuple[int, ...]
    """Directions, by their numbers in the network; AS_PLANNED: each flow takes its route of the first case again."""

    def __str__(self) -> str:
        return f"{self.option} {self.source} -> {self.target}@{self.at.iteration}"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class StartShifted(Event):
    """A job begins its iterations so long after the common start of all jobs from then on."""

    kind = "start-shifted"
    option = "--adapt"
    of_jobs = True
    between_iterations = True

    start_s: float

    def __str__(self) -> str:
        return f"{self.option} {self.name}@{self.at.iteration}"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class LinkEvent(Event):
    """One direction of a link has another rate or delay from then on, or sends nothing until it sends again.

    Its `seconds` count while jobs train: what is left of them when an iteration ends goes on in the next one.
    """

    kind = "link"
    inside_iterations = True

    direction: int
    """Its number in the network."""
    said: str
    """The event as somebody wrote it, of which this is a part."""
    delay_s: float | None = None
    """None, as the next two: as before."""
    rate_bps: float | None = None
    sends: bool | None = None
    """False: an outage begins; True: one is over, and it sends again if that was the last."""
    loss: float | None = None
    """Share of packets; the model has neither this nor the next."""
    jitter_s: float | None = None

    @property
    def by_chance(self) -> bool:
        """Whether it changes what is lost or late by chance, and nothing else."""
        return self.loss is not None or self.jitter_s is not None

    def on_network(self, network: NetworkState) -> NetworkState:
        """With that direction changed."""
        return network.with_direction(self.name, self.direction, self.delay_s, self.rate_bps, sends=self.sends)

    def __str__(self) -> str:
        return self.said


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class RankSlower(Event):
    """All that a rank computes takes so many times as long from then on; `name` is the job's."""

    kind = "rank-slower"
    of_jobs = True
    at_beginnings = True

    rank: int
    """Of the job, the first is 0. Its tensor ranks share the slots of a stage: one that is slower holds up all."""
    factor: float
    said: str
    """The event as somebody wrote it."""
    until: int | None = None
    """The first measured iteration in which it is over; None: it stays."""

    def __str__(self) -> str:
        return self.said


EVENT_KINDS: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        LinkLost,
        JobArrives,
        JobDeparts,
        ScheduleSwapped,
        FlowsMoved,
        StartShifted,
        LinkEvent,
        RankSlower,
    )
}
"""By what plan.json calls them."""


def begins(case: Case) -> Moment:
    """When a case begins."""
    return BEGINNING if case.continues is None else Moment(case.continues.after)


def events_until(plan: Plan, case: Case, at: Moment) -> tuple[Event, ...]:
    """What has happened in a case's training by a moment, what happens then included."""
    return () if case.alone is not None else tuple(event for event in plan.events if event.at <= at)


def events_within(plan: Plan, case: Case, begin: Moment) -> tuple[Event, ...]:
    """What happens behind a moment, until the end of that iteration."""
    if case.alone is not None:
        return ()
    return tuple(event for event in plan.events if event.at.iteration == begin.iteration and event.at > begin)


# --- in a file -----------------------------------------------------------------------------------


def _read(value: object) -> Event:
    if not isinstance(value, dict):
        raise FieldError("", value, "an event: kind, name and at")
    known = EVENT_KINDS.get(str(value.get("kind")))
    if known is None:
        raise FieldError("kind", value.get("kind"), f"a kind of event ({listed(EVENT_KINDS)})")
    try:
        return validated(known, {name: given for name, given in value.items() if name != "kind"})
    except ValidationError as error:
        raise FieldError(*first_fault(error)) from error


def _write(event: Event) -> dict[str, Any]:
    return {"kind": event.kind, **asdict(event)}


WrittenEvent = Annotated[Event, PlainValidator(_read), PlainSerializer(_write)]
"""As plan.json has it: its kind beside its fields."""
