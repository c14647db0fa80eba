"""Jobs on one network -> the program that the event model runs, and what its actions and messages are called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from testbed.model.network import Bools, Ints
from testbed.model.program import FREE, NONE, Program
from testbed.model.rows import Rows
from testbed.pipeline.collectives import Collective
from testbed.pipeline.depend import Message
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Paths, Problem, Route
from testbed.trace.tables import ALL_GATHER, MESSAGE_CODES, MESSAGE_KINDS, NOTICE

Receives = Literal["early", "late", "late-free-notice"]
"""When a receive is posted: a step ahead, or when its rank reaches the action.

Gloo's notice of that crosses the network like any message; a free notice takes no time, as where delay is injected into
the data alone (CrossPipe, appendix F.1)."""


class Load(NamedTuple):
    """A job on the network: all its replicas, and their tensor ranks, run the same schedule."""

    problem: Problem
    schedule: Schedule
    start_s: float = 0.0
    receives: Receives = "early"


def _begin_s(load: Load, path: int, rank: int) -> float:
    """When a rank may begin: one turn after the other, counted over all replicas; tensor ranks together."""
    turn = path // load.problem.tensor * load.problem.n_ranks + rank
    return load.start_s + turn * load.problem.turn_s


class Names(NamedTuple):
    """What the rows of a program are. Per action, then per message."""

    action_job: Ints
    action_replica: Ints
    action_rank: Ints
    messages: np.ndarray[tuple[int], np.dtype[np.void]]
    """dtype NAME"""


NAME = np.dtype(
    [
        ("job", "i4"),
        ("replica", "i4"),
        ("kind", "i1"),
        ("stage", "i4"),
        ("microbatch", "i4"),
        ("source_rank", "i4"),
        ("target_rank", "i4"),
        ("payload_bytes", "f8"),
        ("wire_bytes", "f8"),
    ]
)
"""As the columns of that name in the table of messages."""


def message_number(message: Message, n_microbatches: int) -> int:
    """A number for every message between the stages of a pipeline, dense."""
    return (2 * message.stage + (message.kind == "G")) * n_microbatches + message.microbatch


def lower(loads: Sequence[Load]) -> tuple[Program, Names]:
    """The arrays of jobs that share a network. Raises ValueError when they do not have the same links."""
    links = loads[0].problem.links
    if any(load.problem.links != links for load in loads):
        raise ValueError("jobs of one program share one network")
    building = _Building(len(links))
    for number, load in enumerate(loads):
        building.add(number, load)
    return building.program(loads), building.names()


class _Frame(NamedTuple):
    """What a message of one kind is on its way."""

    route: Route
    back: Route
    pieces: int
    acks: int
    last_bytes: float
    piece_bytes: float
    apart_bytes: float
    ack_bytes: float


def _frame(paths: Paths, source: int, size: float, ways: tuple[Route, Route], apart: float = 0.0) -> _Frame:
    """`size` wire bytes sent by pipeline rank `source`, `apart` of them ahead in a packet of their own.

    `ways` are the route there and the one that acknowledgements take back.
    """
    route, back = ways
    whole = paths.piece_bytes[source] if paths.piece_bytes and route else 0.0
    if not whole:
        return _Frame(route, back, 0, 0, size, 0.0, 0.0, 0.0)
    count, several, rest = math.ceil((size - apart) / whole), len(route) > 1, size
    if several:
        rest -= apart
        for _ in range(count - 1):
            rest -= whole
    packets = count + (apart > 0)
    acks, ack_bytes = (packets, paths.ack_bytes[source]) if paths.ack_bytes else (0, 0.0)
    return _Frame(route, back, packets if several else 0, acks, rest, whole, apart, ack_bytes)


def _send_s(problem: Problem, frame: _Frame, wire_bytes: float) -> float:
    """What the call takes that sends a message; where a link is on the way it only queues it."""
    return 0.0 if frame.route else problem.send_s + problem.send_s_per_byte * wire_bytes


class _Edge(NamedTuple):
    """What a stage sends to a neighbour, for every microbatch; pipeline ranks."""

    stage: int
    kind: int
    """As in the trace."""
    source: int
    target: int
    """The source again where there is no neighbour, or the same rank holds it."""
    wire_bytes: float
    payload_bytes: float


def _edges(problem: Problem) -> list[_Edge]:
    """In the order of `message_number`."""
    holder, edges = problem.stage_to_rank, []
    for stage in range(problem.n_stages):
        for letter, consumer in (("F", stage + 1), ("G", stage - 1)):
            inside = 0 <= consumer < problem.n_stages
            boundary = min(stage, consumer)
            size = problem.message_bytes[boundary] if inside and problem.message_bytes else 0.0
            payload = problem.payload_bytes[boundary] if inside and problem.payload_bytes else math.nan
            target = holder[consumer] if inside else holder[stage]
            edges.append(_Edge(stage, MESSAGE_CODES[letter], holder[stage], target, size, payload))
    return edges


class _Group(NamedTuple):
    """Messages that differ in their microbatch only."""

    frame: _Frame
    local: bool
    size: int
    release: int
    handover_s: float
    send_s: float
    start_s: float


class _Building:
    """The program under construction: columns of actions, and kinds of messages, block by block."""

    def __init__(self, n_links: int) -> None:
        self.n_links = n_links
        self.routes: dict[Route, int] = {}
        self.answers: dict[tuple[Route, Route], list[int]] = {}
        """(route, route back) -> how many messages and pieces are acknowledged that way."""
        self.groups: list[_Group] = []
        self.n_messages = 0
        self.named: list[np.ndarray[tuple[int], np.dtype[np.void]]] = []
        self.row_lengths: list[int] = []
        self.begin_s: list[float] = []
        self.durations: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
        self.needs: list[Ints] = []
        self.makes: list[Ints] = []
        self.unshards: list[Ints] = []
        self.completes: list[Ints] = []
        self.owner: list[tuple[int, int, int]] = []
        """Per rank, its job, its replica, and its number in traces."""
        self.together: list[list[int]] = []
        """The tensor ranks of every stage of a replica, whose actions begin together."""
        self.notice: list[tuple[int, Ints]] = []
        """(first message, numbers) of blocks that have notices; and of announcements."""
        self.announcement: list[tuple[int, Ints]] = []
        self.then: list[tuple[int, int]] = []
        """(message, one that waits for it)"""
        self.gathers: dict[int, int] = {}
        self.first: list[int] = []
        self.last: list[int] = []
        self.shards: list[int] = []
        self.gradients: list[int] = []
        self.reduces: list[list[int]] = []

    # --- jobs ----------------------------------------------------------------------------------

    def add(self, job: int, load: Load) -> None:
        """A job: a pipeline per replica and tensor rank, then what the replicas exchange."""
        problem, schedule = load.problem, load.schedule
        rows, ranks = Rows(problem, schedule), range(schedule.n_ranks)
        first_rank, first_stage = len(self.row_lengths), len(self.shards)
        for path, paths in enumerate(problem.paths):
            stages, tensor_rank = len(self.shards), path % problem.tensor
            base, here = self.n_messages, len(self.row_lengths)
            self._messages(job, path // problem.tensor, load, paths, here)
            self.durations.append(rows.durations)
            self.needs.append(np.where(rows.needs == NONE, NONE, rows.needs + base))
            self.makes.append(np.where(rows.makes == NONE, NONE, rows.makes + base))
            self.unshards.append(np.where(rows.unshards == NONE, NONE, rows.unshards + stages))
            self.completes.append(np.where(rows.completes == NONE, NONE, rows.completes + stages))
            self.row_lengths += [len(row) for row in schedule.rows]
            self.begin_s += [_begin_s(load, path, rank) for rank in ranks]
            self.owner += [(job, path // problem.tensor, first_rank + problem.number(path, rank)) for rank in ranks]
            if tensor_rank == 0:
                self.together += [[here + rank + n * len(ranks) for n in range(problem.tensor)] for rank in ranks]
            self.shards += [0] * problem.n_stages
            self.gradients += [schedule.n_microbatches] * problem.n_stages
            self.reduces += [[] for _ in range(problem.n_stages)]
        for stage in range(problem.n_stages):
            self._collective(job, load, stage, problem.gather(stage), first_rank, first_stage)
        for stage in range(problem.n_stages):
            self._collective(job, load, stage, problem.reduction(stage), first_rank, first_stage)

    def _messages(self, job: int, replica: int, load: Load, paths: Paths, first_rank: int) -> None:
        """The messages between the stages of one pipeline; with late receives also gloo's notices."""
        problem, m = load.problem, load.schedule.n_microbatches
        base, edges = self.n_messages, _edges(problem)
        notices = problem.notice_bytes if load.receives == "late" else 0.0
        for edge in edges:
            ends, local = (edge.source, edge.target), edge.source == edge.target
            ways = paths.route(*ends), paths.route(*ends[::-1])
            apart = 0.0 if notices else problem.notice_bytes
            frame = _NOWHERE if local else _frame(paths, edge.source, edge.wire_bytes - notices, ways, apart)
            release = 1 if load.receives == "early" or local else 2
            self._group(
                _Group(frame, local, m, release, problem.handover_s, _send_s(problem, frame, edge.wire_bytes), 0.0)
            )
            ranks = (first_rank + ends[0], first_rank + ends[1])
            self._name(job, replica, edge.kind, edge.stage, range(m), ranks, (edge.payload_bytes, edge.wire_bytes))
        if load.receives == "early":
            return
        between = np.array([edge.source != edge.target for edge in edges]).repeat(m)
        if load.receives == "late-free-notice":
            self.notice.append((base, np.where(between, FREE, NONE)))
            return
        self._notices(job, replica, load, paths, first_rank, edges, between)

    def _notices(
        self,
        job: int,
        replica: int,
        load: Load,
        paths: Paths,
        first_rank: int,
        edges: Sequence[_Edge],
        between: Bools,
    ) -> None:
        """Per message, gloo's notice of the receive (back to the sender) and of the send (ahead of the message)."""
        problem, m = load.problem, load.schedule.n_microbatches
        size, count = problem.notice_bytes, len(edges) * m
        base = self.n_messages - count
        for back in (True, False):
            for edge in edges:
                ends = (edge.target, edge.source) if back else (edge.source, edge.target)
                frame = _frame(paths, ends[0], size, (paths.route(*ends), paths.route(*ends[::-1])))
                # no handover: gloo's own thread answers a notice, no rank has to be woken
                self._group(_Group(frame, edge.source == edge.target, m, 1, 0.0, 0.0, 0.0))
                ranks = (first_rank + ends[0], first_rank + ends[1])
                self._name(job, replica, NOTICE, edge.stage, range(m), ranks, (0.0, size))
        numbers = np.arange(base, base + count)
        self.notice.append((base, np.where(between, numbers + count, NONE)))
        self.announcement.append((base, np.where(between, numbers + 2 * count, NONE)))
        self.then += [(int(number + count), int(number)) for number in numbers[between]]

    def _collective(
        self, job: int, load: Load, stage: int, what: Collective, first_rank: int, first_stage: int
    ) -> None:
        """The messages of one collective over the replicas of a stage."""
        problem, base = load.problem, self.n_messages
        rank, kind = problem.stage_to_rank[stage], MESSAGE_KINDS.index(what.kind)
        for index, step in enumerate(what.steps):
            ends = (step.source, step.target)
            ways = what.route(step), what.routes.get(ends[::-1], ())
            size = what.size(step)
            frame = _frame(problem.paths[step.source], rank, size, ways, problem.notice_bytes)
            release = len(step.after) + step.own
            send_s = _send_s(problem, frame, size)
            start_s = _begin_s(load, step.source, rank)
            self._group(_Group(frame, False, 1, release, problem.handover_s, send_s, start_s))
            members = tuple(first_rank + path * problem.n_ranks + rank for path in ends)
            sizes = (what.payload(step), size)
            of_replica = step.source // problem.tensor
            self._name(job, of_replica, kind, stage, range(step.number, step.number + 1), members, sizes)
            self.then += [(base + before, base + index) for before in step.after]
            of = [first_stage + path * problem.n_stages + stage for path in ends]
            if kind == ALL_GATHER:
                self.gathers[base + index] = of[1]
                self.shards[of[1]] += 1
            else:
                self.last.append(base + index)
            if step.own:
                self.reduces[of[0]].append(base + index)
            if release == 0:
                self.first.append(base + index)

    def _group(self, group: _Group) -> None:
        frame = group.frame
        self.routes.setdefault(frame.route, len(self.routes))
        rows = self.answers.setdefault((frame.route, frame.back), [])
        if frame.acks:
            rows.append(group.size * max(1, frame.pieces))
        self.groups.append(group)
        self.n_messages += group.size

    def _name(
        self,
        job: int,
        replica: int,
        kind: int,
        stage: int,
        microbatches: range,
        ranks: tuple[int, ...],
        sizes: tuple[float, float],
    ) -> None:
        """Rows of `names`: between which ranks, and the bytes of payload and on the wire."""
        rows = np.zeros(len(microbatches), NAME)
        rows["job"], rows["replica"], rows["kind"], rows["stage"] = job, replica, kind, stage
        rows["microbatch"], (rows["source_rank"], rows["target_rank"]) = microbatches, ranks
        rows["payload_bytes"], rows["wire_bytes"] = sizes
        self.named.append(rows)

    # --- the whole -----------------------------------------------------------------------------

    def names(self) -> Names:
        """What the rows are called."""
        owners = np.array(self.owner)
        owner = owners[np.arange(len(self.row_lengths)).repeat(self.row_lengths)]
        messages = np.concatenate(self.named)
        for end in ("source_rank", "target_rank"):
            messages[end] = owners[messages[end], 2]
        return Names(owner[:, 0], owner[:, 1], owner[:, 2], messages)

    def program(self, loads: Sequence[Load]) -> Program:
        """All of it as arrays."""
        counts = np.array([group.size for group in self.groups])

        def of_groups(values: Sequence[float], dtype: type) -> Any:
            return np.array(values, dtype=dtype).repeat(counts)

        frames = [group.frame for group in self.groups]
        then = sorted(self.then)
        followers = np.bincount([message for message, _ in then], minlength=self.n_messages)
        routes = list(self.routes)
        # a queue for every link of every way back, numbered link by link
        answers = {ways: number for number, ways in enumerate(self.answers)}
        links_of = np.array([link for _, back in self.answers for link in back], np.int64)
        rows = np.array([sum(counts) for (_, back), counts in self.answers.items() for _ in back], np.int64)
        queues = links_of.argsort(kind="stable")
        links = loads[0].problem.links
        together = [rank for ranks in self.together for rank in ranks]
        return Program(
            row_start=_starts(self.row_lengths),
            group=np.arange(len(self.together)).repeat([len(ranks) for ranks in self.together])[np.argsort(together)],
            group_start=_starts([len(ranks) for ranks in self.together]),
            together=np.array(together, np.int64),
            begin_s=np.array(self.begin_s),
            duration_s=np.concatenate(self.durations),
            needs=np.concatenate(self.needs),
            makes=np.concatenate(self.makes),
            unshards=np.concatenate(self.unshards),
            completes=np.concatenate(self.completes),
            release=of_groups([group.release for group in self.groups], np.int64),
            first=np.array(self.first, np.int64),
            first_s=of_groups([group.start_s for group in self.groups], np.float64),
            local=of_groups([group.local for group in self.groups], np.bool_),
            notice=self._scattered(self.notice),
            announcement=self._scattered(self.announcement),
            then_start=_starts(followers),
            then=np.array([following for _, following in then], np.int64),
            target=np.concatenate([rows["target_rank"] for rows in self.named]).astype(np.int64),
            answered=np.concatenate([rows["kind"] for rows in self.named]) == NOTICE,
            gathers=self._by_message(self.gathers),
            wire_bytes=of_groups([frame.last_bytes for frame in frames], np.float64),
            piece_bytes=of_groups([frame.piece_bytes for frame in frames], np.float64),
            pieces=of_groups([frame.pieces for frame in frames], np.int64),
            apart_bytes=of_groups([frame.apart_bytes for frame in frames], np.float64),
            acks=of_groups([frame.acks for frame in frames], np.int64),
            ack_bytes=of_groups([frame.ack_bytes for frame in frames], np.float64),
            handover_s=of_groups([group.handover_s + group.send_s for group in self.groups], np.float64),
            send_s=of_groups([group.send_s for group in self.groups], np.float64),
            route=of_groups([self.routes[frame.route] for frame in frames], np.int64),
            route_start=_starts([len(route) for route in routes]),
            route_links=np.array([link for route in routes for link in route], dtype=np.int64),
            answers=of_groups([answers[frame.route, frame.back] for frame in frames], np.int64),
            answer_start=_starts([len(back) for _, back in self.answers]),
            answer_queues=queues.argsort(kind="stable"),
            queue_start=_starts(np.bincount(links_of, minlength=self.n_links)),
            queue_link=links_of[queues],
            shards=np.array(self.shards, np.int64),
            gradients=np.array(self.gradients, np.int64),
            reduce_start=_starts([len(messages) for messages in self.reduces]),
            reduces=np.array([message for messages in self.reduces for message in messages], np.int64),
            last=np.array(self.last, np.int64),
            wake_s=loads[0].problem.wake_s,
            unnoticed_wait_s=loads[0].problem.unnoticed_wait_s,
            delay_s=np.array([link.delay_s for link in links], dtype=np.float64),
            seconds_per_byte=np.array([link.seconds_per_byte for link in links], dtype=np.float64),
            acknowledgements=rows[queues],
        )

    def _scattered(self, blocks: Sequence[tuple[int, Ints]]) -> Ints:
        result = np.full(self.n_messages, NONE)
        for first, values in blocks:
            result[first : first + len(values)] = values
        return result

    def _by_message(self, values: Mapping[int, int]) -> Ints:
        result = np.full(self.n_messages, NONE)
        for message, value in values.items():
            result[message] = value
        return result


_NOWHERE = _Frame((), (), 0, 0, 0.0, 0.0, 0.0, 0.0)


def _starts(lengths: Sequence[int] | Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
