"""The plan as a value: network, jobs, flows, and the cases to measure in one lab. No behaviour; file.py writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, PlainSerializer, PlainValidator, with_config

from testbed.pipeline.ir import Row, parse_action
from testbed.plan.mesh import Mesh
from testbed.plan.recovery import Recovery
from testbed.plan.timeline import WrittenEvent
from testbed.search.proof import Proof
from testbed.spec.choice import ScheduleChoice
from testbed.spec.document import FieldError
from testbed.spec.topology import Direction
from testbed.spec.workload import Pacing, Transport, Workload

_written = with_config(ConfigDict(extra="forbid"))
"""In a file, a field that does not exist is an error."""

WrittenDirection = Annotated[Direction, PlainSerializer(lambda direction: direction._asdict())]
WrittenProof = Annotated[Proof, PlainSerializer(lambda proof: proof._asdict())]

Route = tuple[int, ...]
"""The directions a flow takes, first to last, as indexes into Network's directions; () inside a datacenter."""


@_written
@dataclass(frozen=True)
class Clock:
    """What makes time pass, and the seed of the virtual clock's kernel."""

    name: Literal["real", "virtual"] = "real"
    seed: int = 1


@_written
@dataclass(frozen=True)
class Node:
    """A container that can hold a rank: "datacenter/number"."""

    name: str
    datacenter: str


@_written
@dataclass(frozen=True)
class NodeLimit:
    """What all ranks on a node may have of the machine together; None: whatever there is."""

    node: str
    memory_bytes: float | None
    cpus: float | None


@_written
@dataclass(frozen=True)
class DefaultRoute:
    """How traffic between two datacenters goes where no flow says otherwise."""

    source: str
    target: str
    route: Route


@_written
@dataclass(frozen=True)
class Network:
    """Nodes, and the directions of the links between datacenters: forward of the first, its reverse, and so on."""

    name: str
    nodes: tuple[Node, ...]
    """Datacenter by datacenter."""
    directions: tuple[WrittenDirection, ...]
    routes: tuple[DefaultRoute, ...]
    """Of every connected pair of different datacenters."""
    cards: tuple[WrittenDirection, ...] = ()
    """Network cards, from a node to its datacenter, datacenter by datacenter; none where the host's cost stands for it.
    Whatever leaves a node crosses its card first, so routes do not name it; numbered after the directions."""
    switches: tuple[str, ...] = ()
    """Ends of directions that have no nodes: they only pass traffic on."""
    limits: tuple[NodeLimit, ...] = ()
    """Of the nodes that have any, on the real clock."""


@_written
@dataclass(frozen=True)
class RateChange:
    """What a flow of background traffic becomes."""

    at_s: float
    """While jobs train, from the beginning of the first iteration that counts; where jobs run freely, from their common
    start."""
    rate_bps: float
    """0: it pauses."""


@_written
@dataclass(frozen=True)
class Background:
    """What one datacenter sends another one beside the jobs: datagrams at equal distances, on the default route."""

    source: str
    target: str
    rate_bps: float
    """On the wire, headers included; until it changes."""
    changes: tuple[RateChange, ...] = ()
    """In order of time; the last rate stays."""


class TrafficKind(StrEnum):
    """What a flow carries."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"
    DATA_PARALLEL = "data-parallel"
    TENSOR_PARALLEL = "tensor-parallel"


@_written
@dataclass(frozen=True)
class Flow:
    """Messages of one kind from one rank to another."""

    source: int
    target: int
    kind: TrafficKind


@_written
@dataclass(frozen=True)
class Profile:
    """What the actions of an unpaced job take on the machine that ran it, by how much memory they go through."""

    few: Pacing
    """With few microbatches in flight: what was just freed is still in the caches."""
    many: Pacing
    """With as many as any case may hold."""
    held_few: tuple[float, ...]
    """Per pipeline rank, the most in flight when `few` was measured."""
    held_many: tuple[float, ...]


@_written
@dataclass(frozen=True)
class Job:
    """One training run: its ranks, where they are, and what they train."""

    name: str
    start_s: float
    mesh: Mesh
    nodes: tuple[str, ...]
    """The node of every rank, in the order of ranks."""
    workload: Workload
    profile: Profile | None = None
    """Of an unpaced job that has been run: what its actions took there, for predictions. A run profiles again."""


def _read_row(value: object) -> Row:
    if not isinstance(value, str):
        raise ValueError("actions such as 2F0, with blanks between them")  # noqa: TRY004 - an error of the input
    row = []
    for text in value.split():
        try:
            row.append(parse_action(text))
        except ValueError as error:
            raise FieldError("", text, f"an action such as 2F0 ({error})") from error
    return tuple(row)


WrittenRow = Annotated[Row, PlainValidator(_read_row), PlainSerializer(lambda row: " ".join(map(str, row)))]


@_written
@dataclass(frozen=True)
class JobSchedule:
    """What one job does in a case."""

    choice: ScheduleChoice
    """Family, options, memory and label; of a family in a file, what the file holds."""
    stage_to_rank: tuple[int, ...]
    """The pipeline rank of every stage."""
    rows: tuple[WrittenRow, ...] | None
    """Per pipeline rank, its actions in order; None where only a run can make them (no pacing)."""
    proof: WrittenProof | None
    """What a solver proved of it."""
    remarks: tuple[str, ...] = ()
    """What a user should know of it: what memory has cost it, or that it is the fastest of several."""
    microbatches: int | None = None
    """Into how many a pipeline's batch is cut, of as many samples in all; None: as the workload says."""


@_written
@dataclass(frozen=True)
class Continuation:
    """How a case goes on with the training of the case before it, where an event of the plan changed what it is for."""

    after: int
    """Measured iterations since the training began; the case before ends with them, and events happen."""
    policy: str | None
    """What a controller chooses routes by, as --policy has it; None: default routes for those that lost theirs."""
    elephants_from: float
    """Bytes in an iteration from which a flow is the policy's to route."""
    detour: int
    """Links more than the shortest route has that it may take."""


@_written
@dataclass(frozen=True)
class Case:
    """What is measured together: a schedule for every job, a route for every flow."""

    label: str
    jobs: tuple[JobSchedule, ...]
    routes: tuple[Route, ...]
    """One for every flow of the plan."""
    continues: Continuation | None = None
    """None where ranks begin anew, on the whole network."""
    starts_s: tuple[float, ...] = ()
    """Per job, when it begins, in place of the job's own `start_s`; () where all begin as they say themselves."""
    alone_of: str | None = None
    """Label of the case before it of which this is one job by itself, on the same routes, with all others away; None
    where it is a case of its own."""
    alone: str | None = None
    """Name of that job."""
    iterations: tuple[int, ...] = ()
    """Per job, how many it trains that count, where jobs run freely: until each has trained as many as its workload
    asks for, so that all are at work meanwhile; () as workloads have it."""


@_written
@dataclass(frozen=True)
class Framing:
    """How messages are cut up on their way."""

    mtu: int
    """Bytes of the largest IP packet."""
    gso_bytes: Mapping[str, int]
    """Per datacenter, the longest super-packet that its nodes may send."""


@_written
@dataclass(frozen=True)
class HostCosts:
    """What the engine adds on any machine; measured, see host_costs.py."""

    handover_s: float
    unnoticed_wait_s: float
    gloo_bytes: int
    """On the wire, beside a message's own."""
    notice_bytes: int
    """On the wire, of the notice that a receive is posted."""
    wake_s: float
    """For gloo's thread to answer a notice, unless something else has just woken it."""
    send_s: float = 0.0
    """Of the call that sends a message where no link is on its route; plans of an earlier testbed have none."""
    send_s_per_byte: float = 0.0
    stagger_s: float = 0.0
    """Between the beginnings of one rank and the next of a job with replicas; earlier plans have none."""
    stagger_s_per_byte: float = 0.0
    """And for each byte that a rank sends as it begins."""
    shared_stagger_s: float = 0.0
    """As much more where a rank begins by sending to another datacenter, behind every rank of its own that does."""
    shared_stagger_s_per_byte: float = 0.0
    """And for each byte that a rank sends there."""
    tie_s: float = 20e-6
    """What the model has within so much of each other may come the other way round; so much in earlier plans."""


MOST_STARTS = 64
"""Places to either side at which starts may be looked for."""


@_written
@dataclass(frozen=True)
class Adaptation:
    """What may swap the schedule of a plan's only job while it is trained; of several jobs, when they begin."""

    controller: str
    """As --adapt has it: a name or FILE.py:NAME, and options behind commas."""
    choices: tuple[ScheduleChoice, ...]
    """What it may swap between, each made anew for what it believes of network and ranks; () of several jobs, which
    keep their schedules."""
    swap_s: float
    """What it takes a swap to cost."""
    microbatches: tuple[int, ...] = ()
    """Numbers of them, beside the workload's own, that it may cut a pipeline's batch into."""
    routes: int = 1
    """Between two datacenters; 1: the one that the plan has."""
    stages: bool = False
    """Whether it may swap to a schedule whose stages are on other ranks, so that weights move."""
    starts: int = 0
    """Places to either side at which starts are looked for, of several jobs; 0: those that the plan has."""
    content: str | None = None
    """Of a controller in a file, what the file holds; None of one that is registered."""


Rounds = Literal["together", "free"]


@_written
@dataclass(frozen=True)
class Plan:
    """One network, the jobs on it, and the cases to measure. Build it with resolve.py."""

    network: Network
    jobs: tuple[Job, ...]
    flows: tuple[Flow, ...]
    cases: tuple[Case, ...]
    framing: Framing
    host_costs: HostCosts
    events: tuple[WrittenEvent, ...] = ()
    """What happens in every training, in order of time; a training: a case that begins anew, and those that go on from
    it. Jobs by themselves (`Case.alone`) train without."""
    changes_for: Literal["unsent", "comers"] = "unsent"
    """Of a link that changes: all bytes that it has not sent yet, as under the relay; or packets that come to it after
    that, as under netem, which gives each its time as it comes."""
    background: tuple[Background, ...] = ()
    """What else is on the network while jobs train, from the beginning of every iteration on; where jobs run freely,
    from their common start to the end."""
    transport: Transport = "otn-lossless"
    seed: int = 1
    """Of what is left to chance in the network: jitter and loss."""
    clock: Clock = field(default_factory=Clock)
    enforcement: Literal["rules", "ports"] = "rules"
    """How a lab has flows take their routes: by rules in routers, or by ports that the routers' own hash sends there;
    rules then for what no port does."""
    elephants_from: float | None = None
    """Bytes in an iteration: flows that send less were no policy's to route, and do not count in the network-wide
    metric; None where no policy chose routes: all flows count."""
    adaptation: Adaptation | None = None
    """None where schedules are swapped when events say so, and at no other time; of a run, what it decided are events
    and cases of the plan that it keeps."""
    rounds: Rounds = "together"
    """Whether an iteration of all jobs begins together, or each job begins its next one when it is done."""
    recovery: Recovery | None = None
    """None where no worker fails, and nothing is saved."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Schedules that were asked for and do not fit: by label, why there is no case with them."""
    format: Literal[3] = 3
    """Of plan.json; one more for every change that an older reader would misunderstand. See upgrade.py."""
