"""The columns of a program while jobs are added to it, and the arrays that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from testbed.model.ack_queues import QueuesOfLinks
from testbed.model.frames import Frame, Way
from testbed.model.network import Floats, Ints
from testbed.model.program import NONE, Program
from testbed.model.rows import Rows
from testbed.pipeline.link import Stream
from testbed.pipeline.problem import Problem, Route
from testbed.trace.tables import NOTICE


class RowNames(NamedTuple):
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


class _MessageNames(NamedTuple):
    """What messages are called that differ in their microbatch only; as in NAME."""

    job: int
    replica: int
    kind: int
    stage: int
    source_rank: int
    target_rank: int
    payload_bytes: float
    wire_bytes: float
    first: int
    """Microbatch, or number in a collective, of the first of them."""
    many: int


class Group(NamedTuple):
    """Messages that differ in their microbatch only."""

    frame: Frame
    local: bool
    size: int
    release: int
    handover_s: float
    send_s: float
    start_s: float
    job: int = 0
    way: Way | None = None
    """What its frame follows from on the routes of its job; None where that is the same on all."""


class ProgramColumns:
    """The program under construction: columns of actions, and kinds of messages, block by block."""

    def __init__(self, n_links: int, changing: frozenset[int] = frozenset()) -> None:
        """`changing`: the links that do not stay as they are; what is acknowledged over them, or came over them, is
        acknowledged packet by packet."""
        self.n_links, self.changing = n_links, changing
        self.routes: dict[Route, int] = {}
        self.answered: dict[tuple[Route, Route], int] = {}
        """(route, route back) -> how many messages and pieces are acknowledged over it; over several links how many
        times."""
        self.groups: list[Group] = []
        self.frames: list[Frame] = []
        """Of the groups, on the routes that are taken."""
        self.n_messages = 0
        self.named: list[_MessageNames] = []
        self.first_numbers: list[tuple[int, int]] = []
        """Of every pipeline, its first message and its first stage."""
        self.row_lengths: list[int] = []
        self.begin_s: list[float] = []
        self.waits: list[bool] = []
        """Per rank, whether a message begins it."""
        self.begins: dict[int, int] = {}
        """Message -> rank that it begins."""
        self.durations: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
        self.gathered: list[Floats] = []
        self.gathered_acks: list[Floats] = []
        self.summed: list[Floats] = []
        self.summed_acks: list[Floats] = []
        self.sums: list[Ints] = []
        self.cards: list[int] = []
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
        self.parts: list[tuple[int, int, int]] = []
        """(first of some messages, first of those that are a part of each, how many)"""
        self.gathers: dict[int, int] = {}
        self.first: list[int] = []
        self.last: list[int] = []
        self.shards: list[int] = []
        self.gradients: list[int] = []
        self.reduces: list[list[int]] = []

    def actions(self, rows: Rows, durations: Floats, messages: int, stages: int) -> None:
        """Those of a pipeline, whose messages and stages begin with these numbers."""
        self.first_numbers.append((messages, stages))
        self.durations.append(durations)
        self.gathered.append(rows.gathered)
        self.gathered_acks.append(rows.gathered_acks)
        self.summed.append(rows.summed)
        self.summed_acks.append(rows.summed_acks)
        self.sums.append(rows.sums)
        self.needs.append(np.where(rows.needs == NONE, NONE, rows.needs + messages))
        self.makes.append(np.where(rows.makes == NONE, NONE, rows.makes + messages))
        self.unshards.append(np.where(rows.unshards == NONE, NONE, rows.unshards + stages))
        self.completes.append(np.where(rows.completes == NONE, NONE, rows.completes + stages))
        self.row_lengths += rows.lengths

    def group(self, group: Group) -> None:
        """Messages of one kind, and what acknowledges them."""
        self._crossed(group.frame, group.size)
        self.groups.append(group)
        self.frames.append(group.frame)
        self.n_messages += group.size

    def _crossed(self, frame: Frame, count: int) -> None:
        for route in (frame.route, frame.back):
            self.routes.setdefault(route, len(self.routes))
        if frame.acks:
            there_and_back, rows = (frame.route, frame.back), max(1, frame.pieces)
            if len(frame.back) > 1:
                rows = frame.acks
            self.answered[there_and_back] = self.answered.get(there_and_back, 0) + count * rows

    def name(
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
        source, target = ranks
        named = (job, replica, kind, stage, source, target)
        self.named.append(_MessageNames(*named, *sizes, microbatches.start, len(microbatches)))

    def _name_rows(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Per message."""
        counts = np.array([each.many for each in self.named], np.int64)
        rows = np.zeros(int(counts.sum()), NAME)
        for column in _MessageNames._fields[:-2]:
            rows[column] = np.array([getattr(each, column) for each in self.named], NAME[column]).repeat(counts)
        begins = np.cumsum(counts) - counts - [each.first for each in self.named]
        rows["microbatch"] = np.arange(len(rows)) - begins.repeat(counts)
        return rows

    # --- the whole -----------------------------------------------------------------------------

    def names(self) -> RowNames:
        """What the rows are called."""
        owners = np.array(self.owner)
        owner = owners[np.arange(len(self.row_lengths)).repeat(self.row_lengths)]
        messages = self._name_rows()
        for end in ("source_rank", "target_rank"):
            messages[end] = owners[messages[end], 2]
        return RowNames(owner[:, 0], owner[:, 1], owner[:, 2], messages)

    def program(self, problem: Problem) -> Program:
        """All of it as arrays, for jobs on the network of `problem`.

        Always of the same types, as what is compiled is compiled anew for others: a number of bytes may be an int.
        """
        counts = np.array([group.size for group in self.groups], np.int64)
        return Program(
            **self._ranks(),
            **self._actions(),
            **self._messages(counts),
            **self._routes_and_queues(counts, problem.streams),
            **self._gradients(),
            exchange_handover_s=float(problem.handover_s),
            exchange_notice_bytes=float(problem.exchange_notice.there),
            exchange_notice_acks_bytes=float(problem.exchange_notice.acks),
            wake_s=float(problem.wake_s),
            unnoticed_wait_s=float(problem.unnoticed_wait_s),
            stamped=bool(problem.stamped),
            delay_s=np.array([link.delay_s for link in problem.links], dtype=np.float64),
            seconds_per_byte=np.array([link.seconds_per_byte for link in problem.links], dtype=np.float64),
            **self._changes(problem),
        )

    def rerouted(self, program: Program, problems: Sequence[Problem]) -> Program:
        """A program that these columns made, for the same jobs on other routes, as other columns would make it.

        Raises ValueError where a message now crosses links and did not, or does no longer: its ends change what it
        takes to send it.
        """
        moved = [group.frame if group.way is None else group.way.frame(problems[group.job]) for group in self.groups]
        if any(bool(one.route) != bool(other.route) for one, other in zip(moved, self.frames, strict=True)):
            raise ValueError("a message that crosses links does so on all routes")
        self.frames, self.routes, self.answered = moved, {}, {}
        for group, frame in zip(self.groups, moved, strict=True):
            self._crossed(frame, group.size)
        counts = np.array([group.size for group in self.groups], np.int64)
        return program._replace(**self._framed(counts), **self._routes_and_queues(counts, problems[0].streams))

    def rescheduled(self, program: Program, rows: Rows) -> Program:
        """A program that these columns made of one job, for the same job with other actions in its pipelines' rows."""
        other = ProgramColumns(self.n_links)
        for messages, stages in self.first_numbers:
            other.actions(rows, rows.durations, messages, stages)
        return program._replace(row_start=_starts(other.row_lengths), **other._actions())

    def _changes(self, problem: Problem) -> dict[str, Any]:
        """Link by link, each in order of time."""
        changes = sorted(problem.changes, key=lambda change: (change.link, change.at_s))
        numbers = np.array([change.link for change in changes], np.int64)
        return {
            "change_start": _starts(np.bincount(numbers, minlength=self.n_links)),
            "changed_at_s": np.array([change.at_s for change in changes], np.float64),
            "changed_delay_s": np.array([change.delay_s for change in changes], np.float64),
            "changed_seconds_per_byte": np.array([change.seconds_per_byte for change in changes], np.float64),
        }

    def _ranks(self) -> dict[str, Any]:
        sizes, together = [len(ranks) for ranks in self.together], [rank for ranks in self.together for rank in ranks]
        return {
            "row_start": _starts(self.row_lengths),
            "group": np.arange(len(sizes)).repeat(sizes)[np.argsort(together)],
            "group_start": _starts(sizes),
            "together": np.array(together, np.int64),
            "begin_s": np.array(self.begin_s),
            "waits": np.array(self.waits, np.bool_),
            "card": np.array(self.cards, np.int64),
        }

    def _actions(self) -> dict[str, Any]:
        return {
            "duration_s": np.concatenate(self.durations),
            "gathered_bytes": np.concatenate(self.gathered),
            "gathered_acks_bytes": np.concatenate(self.gathered_acks),
            "summed_bytes": np.concatenate(self.summed),
            "summed_acks_bytes": np.concatenate(self.summed_acks),
            "sums": np.concatenate(self.sums),
            "needs": np.concatenate(self.needs),
            "makes": np.concatenate(self.makes),
            "unshards": np.concatenate(self.unshards),
            "completes": np.concatenate(self.completes),
        }

    def _messages(self, counts: Ints) -> dict[str, Any]:
        groups = self.groups
        then = sorted(self.then)
        followers = np.bincount([message for message, _ in then], minlength=self.n_messages)
        named = self._name_rows()
        source, target = (named[end].astype(np.int64) for end in ("source_rank", "target_rank"))
        parts, which = self._parts()
        return {
            "release": _of_groups(counts, [group.release for group in groups], np.int64),
            "first": np.array(self.first, np.int64),
            "source": source,
            "first_s": _of_groups(counts, [group.start_s for group in groups], np.float64),
            "lag_s": np.zeros(self.n_messages),
            "card_lag_s": np.zeros(self.n_messages),
            "local": _of_groups(counts, [group.local for group in groups], np.bool_),
            "notice": self._scattered(self.notice),
            "announcement": self._scattered(self.announcement),
            "then_start": _starts(followers),
            "then": np.array([following for _, following in then], np.int64),
            **parts,
            "thread": target * (which.max() + 1) + which,
            "answered": named["kind"] == NOTICE,
            "begins": self._by_message(self.begins),
            "gathers": self._by_message(self.gathers),
            **self._framed(counts),
            "handover_s": _of_groups(counts, [group.handover_s + group.send_s for group in groups], np.float64),
            "send_s": _of_groups(counts, [group.send_s for group in groups], np.float64),
        }

    def _framed(self, counts: Ints) -> dict[str, Any]:
        frames = self.frames
        return {
            "wire_bytes": _of_groups(counts, [frame.last_bytes for frame in frames], np.float64),
            "piece_bytes": _of_groups(counts, [frame.piece_bytes for frame in frames], np.float64),
            "pieces": _of_groups(counts, [frame.pieces for frame in frames], np.int64),
            "notice_ahead_bytes": _of_groups(counts, [frame.notice_ahead_bytes for frame in frames], np.float64),
            "acks": _of_groups(counts, [frame.acks for frame in frames], np.int64),
            "ack_bytes": _of_groups(counts, [frame.ack_bytes for frame in frames], np.float64),
        }

    def _parts(self) -> tuple[dict[str, Any], Ints]:
        """Which messages are parts of which, and per message, which part of one it is."""
        numbers, whole = np.arange(self.n_messages), np.arange(self.n_messages)
        which = np.zeros(self.n_messages, np.int64)
        counts = dict[int, int]()
        for message, part, size in self.parts:
            whole[part : part + size] = np.arange(message, message + size)
            which[part : part + size] = counts.get(message, 0)
            counts[message] = counts.get(message, 0) + 1
        # what is sent whole, a part among them, is its own only part
        sent_in_parts = np.isin(numbers, whole[whole != numbers])
        part_of = np.where(whole == numbers, NONE, whole)
        pairs = np.concatenate(
            (np.stack((numbers, numbers))[:, ~sent_in_parts], np.stack((whole, numbers))[:, part_of != NONE]), axis=1
        )
        columns = {
            "part_start": _starts(np.bincount(pairs[0], minlength=self.n_messages)),
            "parts": pairs[1][np.argsort(pairs[0], kind="stable")],
            "part_of": part_of,
        }
        return columns, which

    def _routes_and_queues(self, counts: Ints, streams: Sequence[Stream]) -> dict[str, Any]:
        for stream in streams:
            self.routes.setdefault(stream.route, len(self.routes))
        frames, routes = self.frames, list(self.routes)
        queues = QueuesOfLinks(self.answered, streams, self.changing, in_parts=bool(self.parts))
        return {
            "route": _of_groups(counts, [self.routes[frame.route] for frame in frames], np.int64),
            "route_start": _starts([len(route) for route in routes]),
            "route_links": np.array([link for route in routes for link in route], dtype=np.int64),
            "back": _of_groups(counts, [self.routes[frame.back] for frame in frames], np.int64),
            "ack_queue": _of_groups(counts, queues.of_frames(frames), np.int64),
            **queues.columns(self.n_links),
            "stream_queue": queues.of_streams(),
            "stream_route": np.array([self.routes[stream.route] for stream in streams], np.int64),
            "stream_bytes": np.array([stream.wire_bytes for stream in streams], np.float64),
            **_spans(streams),
        }

    def _gradients(self) -> dict[str, Any]:
        return {
            "shards": np.array(self.shards, np.int64),
            "gradients": np.array(self.gradients, np.int64),
            "reduce_start": _starts([len(messages) for messages in self.reduces]),
            "reduces": np.array([message for messages in self.reduces for message in messages], np.int64),
            "last": np.array(self.last, np.int64),
        }

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


def _spans(streams: Sequence[Stream]) -> dict[str, Any]:
    """Stream by stream."""
    spans = [span for stream in streams for span in stream.spans]
    return {
        "span_start": _starts([len(stream.spans) for stream in streams]),
        "span_first_s": np.array([span.first_s for span in spans], np.float64),
        "span_every_s": np.array([span.every_s for span in spans], np.float64),
        "span_before_s": np.array([span.before_s for span in spans], np.float64),
    }


def _starts(lengths: Sequence[int] | Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


def _of_groups(counts: Ints, values: Sequence[float], dtype: type) -> Any:
    """Per message, what its group has; `counts` says how many messages each group has."""
    return np.array(values, dtype=dtype).repeat(counts)
