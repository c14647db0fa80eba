"""The event model against an oracle that shares nothing with it: every packet and acknowledgement an event of its own.

    python benchmarks/network_oracle.py [--cases 2000] [--first 0] [--real] [--two-links]

Cases are drawn at random: pipelines, replicas with collectives, tensor ranks with network cards, several jobs; routes
over none, one or several links, shared with other routes and with acknowledgements of either; early and late receives,
with and without gloo's notices. All times and sizes are whole numbers, which floats add exactly, so the times of every
action and message must be equal to the last bit. With --real times are any numbers, and must agree to 1e-12.

The oracle is a textbook simulation: a link is a queue that serves who comes first; what is served, is followed by the
events that come of it. At one instant acknowledgements come to a link before all else, what a rank does as an action
ends comes before what others do (of a reduction what follows from nothing first, then in the order in which that came
from which it follows), what a rank begins with comes after all else and rank by rank, a shard is passed on before a
rank goes on that waited for it (as the engine's threads do), and otherwise first is who was scheduled first.

Two of three cases have streams of datagrams beside the jobs, over one to three links, at distances that change.

With --real every other case has links that change while messages are under way: rates and delays that step, links that
send nothing for a while. What a link can send until an instant is a line with corners then, and a message is over where
that line has risen by its bytes. In half of these, without the spans in which nothing is sent, what comes keeps the
rate and the delay of that instant, as netem has it. Floats add otherwise in another order: in case 1480 two notices
come to a link at one instant, over the same two links in opposite orders, and rounding alone says which is first.
Plans are predicted in whole ticks, which add exactly.

With --two-links every route has two links, as through a Clos network or behind a card, and nothing else is on them:
what is acknowledged then waits in queues of both, in the model.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from harness import options
from harness.record import Topic, each, finish

from testbed.model.lower import Load, lower
from testbed.model.program import FREE, NONE, Program
from testbed.model.simulate import run
from testbed.pipeline.algorithms import Members, exchange
from testbed.pipeline.collectives import Collective, CollectiveMessage, side_by_side
from testbed.pipeline.link import LinkChange, LinkCost, Stream, StreamSpan
from testbed.pipeline.problem import Exchanged, PipelineRoutes, Problem, Receives, Transfer, uniform
from testbed.schedule.registry import FAMILIES, generate

Number = int | Fraction
FIELDS = ("start_s", "end_s", "ready_s", "posted_s", "sent_s", "arrived_s")
LIMIT = 1e-12
MOST_STAGES, MOST_PATHS = 4, 6
"""Ranks of a pipeline, and pipelines of a job."""


def exact(values: Any) -> list[Any]:
    """Numbers that add up exactly."""
    return [int(one) if float(one).is_integer() else Fraction(float(one)) for one in np.asarray(values).tolist()]


class Unit(NamedTuple):
    """What a link carries in one go."""

    size: Number
    last_bit: Number
    """When its last bit comes to the link."""
    begun: Callable[[Number, Number], None]
    """Told when its first bit leaves the link's head, and when what left before is at the link's end; its own last bit
    is there when the link says that it is `out`."""
    parts: Sequence[Number] = ()
    """What leaves before its last bit, packet by packet, of one that keeps together."""


class Link:
    """A queue: who comes first is carried first."""

    def __init__(self, world: World, delay: Number, per_byte: Number, stamped: bool) -> None:
        self.world, self.delay, self.per_byte, self.stamped = world, delay, per_byte, stamped
        self.waiting: deque[Unit] = deque()
        self.busy = False
        self.corners: list[tuple[Number, Number, Number | None]] = []
        """From when on which delay, and which time for a byte; None while nothing is sent."""
        self.out: Number = Fraction(0)
        """When what left last is at the end."""

    def over(self, begin: Number, size: Number) -> Number:
        """When so many bytes have left that the link begins to send then."""
        at, left = begin, size
        spans = [(begin, self.delay, self.per_byte), *self.corners]
        for (_, _, per_byte), (until, _, _) in pairwise(spans):
            if until <= at:
                continue
            if per_byte is not None and at + left * per_byte <= until:
                return at + left * per_byte
            if per_byte:
                left -= Fraction(until - at) / per_byte
            at = until
        _, _, last = spans[-1]
        assert last is not None, "a link that never sends again"
        return at + left * last

    def end(self, left: Number) -> Number:
        """When it is at the end what has left by then."""
        return left + next((delay for since, delay, _ in reversed(self.corners) if since < left), self.delay)

    def keeps(self) -> tuple[Number, Number, Number]:
        """Delay, and time for a byte, of what comes now to a link that stamps it, and when: in an outage at its end."""
        passed = [corner for corner in self.corners if corner[0] < self.world.now]
        delay, per_byte = passed[-1][1:] if passed else (self.delay, self.per_byte)
        when: Number = self.world.now
        for since, then_delay, then_per_byte in self.corners[len(passed) :]:
            if per_byte is not None:
                break
            when, delay, per_byte = since, then_delay, then_per_byte
        assert per_byte is not None, "a link that never sends again"
        return delay, per_byte, when

    def take(self, unit: Unit) -> None:
        """A unit's first bit has come."""
        if self.stamped and self.corners:
            delay, per_byte, when = self.keeps()
            before, begin = self.out, max(when + delay, self.out) - delay
            self.out = max(begin + unit.size * per_byte, unit.last_bit) + delay
            unit.begun(begin, before)
            return
        self.waiting.append(unit)
        if not self.busy:
            self._serve()

    def _serve(self) -> None:
        unit, now = self.waiting.popleft(), self.world.now
        self.busy, done = True, max(self.over(now, unit.size), unit.last_bit)
        before, self.out = self.out, max(self.out, self.end(done))
        sent = Fraction(0)
        for part in unit.parts if self.corners else ():
            sent += part
            comes = now + (unit.last_bit - now) * sent / unit.size
            self.out = max(self.out, self.end(max(self.over(now, sent), comes)))
        unit.begun(now, before)
        self.world.at(done, self._served, 0)

    def _served(self) -> None:
        self.busy = False
        if self.waiting:
            self._serve()


class World:
    """A program run event by event."""

    def __init__(self, program: Program) -> None:
        self.program, self.count = program, 0
        self.now: Number = 0
        self.events: list[tuple[Number, int, int, Callable[[], None]]] = []
        delays, costs = exact(program.delay_s), exact(program.seconds_per_byte)
        self.links = [Link(self, delay, cost, program.stamped) for delay, cost in zip(delays, costs, strict=True)]
        for number, link in enumerate(self.links):
            mine = slice(program.change_start[number], program.change_start[number + 1])
            per_byte = [None if np.isinf(cost) else Fraction(cost) for cost in program.changed_seconds_per_byte[mine]]
            link.corners = list(
                zip(exact(program.changed_at_s[mine]), exact(program.changed_delay_s[mine]), per_byte, strict=True)
            )
        self.routes = [
            [self.links[link] for link in program.route_links[begin:end]]
            for begin, end in zip(program.route_start, program.route_start[1:], strict=False)
        ]
        self.duration, self.begin = exact(program.duration_s), exact(program.begin_s)
        self.first_s, self.handover = exact(program.first_s), exact(program.handover_s)
        self.send_s, self.sums = exact(program.send_s), program.sums.tolist()
        self.gathered, self.gathered_acks = exact(program.gathered_bytes), exact(program.gathered_acks_bytes)
        self.summed, self.summed_acks = exact(program.summed_bytes), exact(program.summed_acks_bytes)
        (self.exchange_handover,) = exact([program.exchange_handover_s])
        self.posted = exact([program.exchange_notice_bytes, program.exchange_notice_acks_bytes])
        self.whole, self.piece = exact(program.wire_bytes), exact(program.piece_bytes)
        self.ahead, self.ack = exact(program.notice_ahead_bytes), exact(program.ack_bytes)
        (self.wake,), (self.unnoticed,) = exact([program.wake_s]), exact([program.unnoticed_wait_s])
        n_ranks, n_messages = len(program.begin_s), len(program.release)
        self.times: dict[str, list[Number | None]] = {
            name: [None] * (n_messages if name in ("posted_s", "sent_s", "arrived_s") else len(program.duration_s))
            for name in FIELDS
        }
        self.lacking = program.release.tolist()
        self.came: list[Number] = [0] * n_messages
        """When the last came that a message has waited for until now."""
        self.here: list[Number | None] = [None] * n_messages
        """When a message could be used."""
        self.place, self.end_of_row = program.row_start[:-1].tolist(), program.row_start[1:].tolist()
        self.free, self.sending = list(self.begin), list(self.begin)
        self.ready: list[Number | None] = [None] * n_ranks
        """When what it waits for came, of a rank that waits for its tensor ranks alone."""
        self.running = [False] * n_ranks
        self.exchanges: Counter[int] = Counter()
        """By action, how many exchanges with other tensor ranks are over."""
        self.exchanging: set[int] = set()
        """The actions for which a rank has sent its part of the next one."""
        self.parts: Counter[tuple[int, int]] = Counter()
        """By action and number of its exchange, how many parts of others have come."""
        self.asked_for: Counter[tuple[int, int]] = Counter()
        """By action and other rank, for how many of its further sums that has posted a receive."""
        self.not_asked_for: dict[tuple[int, int], Callable[[], None]] = {}
        """What sends a summand of an action to a rank that has no receive posted for it yet."""
        self.waits: list[int | None] = [None] * n_ranks
        """The message that a rank waits for; None where it does not, or for a stage's parameters."""
        self.shards = program.shards.tolist()
        self.whole_s: list[Number] = [Fraction(0)] * len(program.shards)
        self.gradients = program.gradients.tolist()
        self.heard: dict[int, Number] = {}
        """When something last came to a rank's host, to wake gloo's thread."""
        for message in program.first.tolist():
            self.as_its_rank_begins(message)
        for rank in range(n_ranks):
            self.at(self.begin[rank], partial(self.go_on, rank), priority=2 + rank)
        self.send_streams()

    def send_streams(self) -> None:
        """Have all datagrams of all streams sent."""
        p, sizes = self.program, exact(self.program.stream_bytes)
        spans = [exact(column) for column in (p.span_first_s, p.span_every_s, p.span_before_s)]
        for stream, route in enumerate(p.stream_route.tolist()):
            for first, every, before in list(zip(*spans, strict=True))[p.span_start[stream] : p.span_start[stream + 1]]:
                for number in range(math.ceil((before - first) / every)):
                    on = partial(self.datagram_on, self.routes[route], sizes[stream])
                    self.at(first + number * every, on, 0)

    def datagram_on(self, route: Sequence[Link], size: Number) -> None:
        """A datagram is at a link."""
        link, further = route[0], route[1:]

        def begun(*_: Number) -> None:
            if further:
                self.at(link.out, lambda: self.datagram_on(further, size), 0)

        link.take(Unit(size, self.now, begun))

    def as_its_rank_begins(self, message: int) -> None:
        """Have a message leave with what its rank begins with: all of that before what another one begins with."""
        leaves = partial(self.leave, message)
        self.at(self.first_s[message], leaves, priority=2 + int(self.program.source[message]))

    def at(self, time: Number, what: Callable[[], None], priority: int = 1, number: int | None = None) -> None:
        """Have something happen; the next one's number unless it was given one before."""
        if number is None:
            self.count += 1
        heapq.heappush(self.events, (time, priority, self.count if number is None else number, what))

    def run(self) -> dict[str, list[Number | None]]:
        """All that comes of it."""
        while self.events:
            self.now, _, _, what = heapq.heappop(self.events)
            what()
        return self.times

    # --- ranks ---------------------------------------------------------------------------------

    def go_on(self, rank: int, *, ended: bool = False) -> None:
        """Begin the next action, or find out what it waits for; right behind the end of the one before?"""
        p, place = self.program, self.place[rank]
        self.waits[rank] = None
        if place == self.end_of_row[rank] or self.running[rank] or self.ready[rank] is not None:
            return
        if self.now < self.begin[rank]:
            return
        message, stage = int(p.needs[place]), int(p.unshards[place])
        if message != NONE and self.here[message] is None:
            self.waits[rank] = message
            if p.notice[message] != NONE and self.times["posted_s"][message] is None:
                posted = max(self.now, self.sending[rank])
                self.times["posted_s"][message] = posted
                subject = message if p.notice[message] == FREE else int(p.notice[message])
                if ended and p.notice[message] != FREE and posted <= self.now:
                    self.one_less(subject)
                else:
                    self.at(posted, lambda: self.one_less(subject))
            return
        if stage != NONE and self.shards[stage]:
            return
        inputs = [self.begin[rank]]
        if message != NONE:
            inputs.append(self.here[message])
        if stage != NONE:
            inputs.append(self.whole_s[stage])
        self.ready[rank] = max(inputs)
        group = int(p.group[rank])
        if p.card[rank] != NONE and self.gathered[place]:
            self.at(self.now, lambda: self.gather(rank, place))
        self.begin_group(group)

    def begin_group(self, group: int) -> None:
        """Tensor ranks begin an action together."""
        p = self.program
        members = p.together[p.group_start[group] : p.group_start[group + 1]].tolist()
        if any(self.ready[member] is None for member in members):
            return
        came = max(self.ready[member] for member in members)
        for member in members:
            self.ready[member], self.running[member] = None, True
            action = self.place[member]
            start = came if came - self.free[member] > self.unnoticed else self.free[member]
            self.times["ready_s"][action], self.times["start_s"][action] = came, start
            self.at(start + self.duration[action], partial(self.end, member))
        if p.card[members[0]] != NONE and self.sums[action] and not self.gathered[action]:
            for member in members:
                self.at(self.now, partial(self.add_up, member, self.place[member]))

    # --- tensor ranks --------------------------------------------------------------------------

    def gather(self, rank: int, action: int) -> None:
        """A tensor rank sends the others its part of the input."""
        self.send_parts(rank, action, self.gathered[action], self.gathered_acks[action], 0)

    def add_up(self, rank: int, action: int) -> None:
        """A tensor rank sends the others its summand."""
        self.sums[action] -= 1
        further = self.exchanges[action] - bool(self.gathered[action])
        self.send_parts(rank, action, self.summed[action], self.summed_acks[action], further)

    def others(self, rank: int) -> list[int]:
        """The other tensor ranks of a rank's stage."""
        p, group = self.program, int(self.program.group[rank])
        members: list[int] = p.together[p.group_start[group] : p.group_start[group + 1]].tolist()
        return [member for member in members if member != rank]

    def send_parts(self, rank: int, action: int, size: Number, acks: Number, further: int) -> None:
        """Each of the others hears of its part one after the other, and gets it when it has posted a receive for that,
        `further` ones in this action; without others nothing is to be waited for."""
        notice, notice_ack = self.posted
        self.exchanging.add(action)
        for other in self.others(rank):
            theirs = action - int(self.program.row_start[rank]) + int(self.program.row_start[other])
            self.over_card(rank, notice, partial(self.over_card, other, notice_ack, lambda: None))
            came = partial(self.take_part, other, theirs, self.exchanges[action], max(0, acks - notice_ack))
            send = partial(self.over_card, rank, max(0, size - notice), came, self.exchange_handover)
            if self.asked_for[action, other] < further:
                self.not_asked_for[action, other] = send
            else:
                send()
        self.end_exchange(rank, action)

    def take_part(self, rank: int, action: int, number: int, acks: Number) -> None:
        """A part of that exchange has come, and is acknowledged."""
        self.over_card(rank, acks, lambda: None)
        self.parts[action, number] += 1
        self.end_exchange(rank, action)

    def end_exchange(self, rank: int, action: int) -> None:
        """With all parts its next receives are posted, which the others acknowledge; then comes its next sum."""
        others = self.others(rank)
        if action not in self.exchanging or self.parts[action, self.exchanges[action]] < len(others):
            return
        self.exchanges[action] += 1
        self.exchanging.remove(action)
        after_gathering = self.gathered[action] > 0 and self.exchanges[action] == 1
        for other in others:
            theirs = action - int(self.program.row_start[rank]) + int(self.program.row_start[other])
            self.over_card(rank, self.posted[0], partial(self.ask, other, theirs, rank, after_gathering))
        if self.sums[action]:
            self.at(self.now, partial(self.add_up, rank, action))

    def ask(self, rank: int, action: int, other: int, after_gathering: bool) -> None:
        """A rank hears that another one has its next receive posted: of a sum, unless it followed what is gathered."""
        self.over_card(rank, self.posted[1], lambda: None)
        if after_gathering:
            return
        self.asked_for[action, other] += 1
        if (action, other) in self.not_asked_for:
            self.not_asked_for.pop((action, other))()

    def over_card(self, rank: int, size: Number, over: Callable[[], None], after: Number = 0) -> None:
        """Something crosses a rank's network card; tells, so long after, when it is there."""
        link = self.links[self.program.card[rank]]
        self.count += 1  # scheduled now, also where it waits for the card: at one instant it is as early as that
        number = self.count
        link.take(Unit(size, self.now, lambda *_: self.at(link.out + after, over, number=number)))

    def end(self, rank: int) -> None:
        """An action is over: what it made leaves, then the shares of a reduction, then the rank goes on."""
        p, action = self.program, self.place[rank]
        self.times["end_s"][action] = self.now
        self.free[rank], self.running[rank] = self.now, False
        self.place[rank] += 1
        made, stage = int(p.makes[action]), int(p.completes[action])
        if made != NONE:
            self.times["sent_s"][made] = self.now
            if p.local[made]:
                self.times["arrived_s"][made] = self.here[made] = self.now
            else:
                if p.release[made] > 1 and p.announcement[made] != NONE:
                    self.leave(int(p.announcement[made]))
                if p.release[made] > 1 and self.lacking[made] == 1:
                    self.sending[rank] = self.now + self.send_s[made]
                self.one_less(made)
        if stage != NONE:
            self.gradients[stage] -= 1
            if not self.gradients[stage]:
                shards = p.reduces[p.reduce_start[stage] : p.reduce_start[stage + 1]].tolist()
                for shard in sorted(shards, key=lambda shard: self.came[shard]):
                    self.one_less(shard)
        self.go_on(rank, ended=True)

    # --- messages ------------------------------------------------------------------------------

    def one_less(self, message: int) -> None:
        """A message waits for one thing less."""
        self.lacking[message] -= 1
        self.came[message] = self.now
        if self.lacking[message] > 0:
            return
        if self.now < self.first_s[message]:
            self.as_its_rank_begins(message)
        else:
            self.leave(message)

    def leave(self, message: int) -> None:
        """All packets of a message come to the first link."""
        p = self.program
        if self.times["sent_s"][message] is None:
            self.times["sent_s"][message] = self.now
        route = self.routes[p.route[message]]
        if not route:
            self.come(message)
            return
        if not p.pieces[message]:
            self.whole_on(message, route, self.now)
            return
        sizes = [self.piece[message]] * (int(p.pieces[message]) - 1) + [self.whole[message]]
        if self.ahead[message]:
            sizes[0] = self.ahead[message]
        left = Counter({message: len(sizes)})
        for size in sizes:
            self.piece_on(message, route, size, left)

    def whole_on(self, message: int, route: Sequence[Link], last_bit: Number) -> None:
        """A message that keeps together is at a link; it leaves a router while its tail still comes in."""
        link, further = route[0], route[1:]

        def begun(begin: Number, before: Number) -> None:
            out = link.out
            if further:
                first = begin + link.keeps()[0] if link.stamped and link.corners else link.end(begin)
                self.at(max(before, first), lambda: self.whole_on(message, further, out))
                return
            self.at(out, lambda: self.come(message))
            for when in self.packets(message, link, begin, before):
                self.acknowledge(message, when)

        link.take(Unit(self.whole[message], last_bit, begun, self.sizes(message)[:-1]))

    def sizes(self, message: int) -> list[Number]:
        """Of the packets of a message that keeps together."""
        found = [self.piece[message]] * int(self.program.acks[message])
        if self.ahead[message] and found:
            found[0] = self.ahead[message]
        return found

    def packets(self, message: int, link: Link, begin: Number, before: Number) -> list[Number]:
        """When the packets of a message that keeps together have come in over a link."""
        sent: Number = Fraction(0)
        found, came = list[Number](), before
        for size in self.sizes(message):
            sent += size
            if link.stamped and link.corners:
                delay, per_byte, _ = link.keeps()
                end = begin + sent * per_byte + delay
            else:
                end = link.end(link.over(begin, sent))
            came = min(max(came, end), link.out)
            found.append(came)
        if found:
            found[-1] = link.out
        return found

    def piece_on(self, message: int, route: Sequence[Link], size: Number, left: Counter[int]) -> None:
        """A super-packet is at a link: it is stored, queued and forwarded by itself."""
        link, further = route[0], route[1:]

        def begun(*_: Number) -> None:
            out = link.out
            if further:
                self.at(out, lambda: self.piece_on(message, further, size, left))
                return
            left[message] -= 1
            if not left[message]:
                self.at(out, lambda: self.come(message))
            if self.program.acks[message]:
                self.acknowledge(message, out)

        link.take(Unit(size, self.now, begun))

    def acknowledge(self, message: int, when: Number) -> None:
        """An acknowledgement goes all the way back."""
        self.at(when, lambda: self.ack_on(message, self.routes[self.program.back[message]]), 0)

    def ack_on(self, message: int, route: Sequence[Link]) -> None:
        """It is at a link."""
        if not route:
            return
        link, further = route[0], route[1:]

        def begun(*_: Number) -> None:
            if further:
                self.at(link.out, lambda: self.ack_on(message, further), 0)

        link.take(Unit(self.ack[message], self.now, begun))

    # --- arrivals ------------------------------------------------------------------------------

    def come(self, message: int) -> None:
        """A message's last bit is there; gloo's thread answers a notice when it is awake."""
        p, thread = self.program, int(self.program.thread[message])
        heard, self.heard[thread] = self.heard.get(thread), self.now
        asleep = heard is None or heard + self.wake < self.now
        after = self.wake if p.answered[message] and asleep else 0
        usable = self.now + self.handover[message] + after
        self.times["arrived_s"][message] = usable
        self.at(usable, lambda: self.use(message))

    def use(self, message: int) -> None:
        """It can be used: by messages that follow from it, by the rank, by the stage that gathers."""
        p = self.program
        self.here[message] = self.now
        for following in p.then[p.then_start[message] : p.then_start[message + 1]].tolist():
            self.at(self.now, partial(self.one_less, following))
        for rank, waits in enumerate(self.waits):
            if waits == message:
                self.go_on(rank)
        stage = int(p.gathers[message])
        if stage != NONE:
            self.shards[stage] -= 1
            if not self.shards[stage]:
                self.whole_s[stage] = self.now
                for rank, waits in enumerate(self.waits):
                    if waits is None:
                        self.go_on(rank)


# --- cases ---------------------------------------------------------------------------------------


class Draw:
    """Random numbers of a case: whole ones, or any."""

    def __init__(self, number: int, real: bool) -> None:
        self.random, self.real = random.Random(f"network/{number}"), real

    def time(self, least: float, most: float) -> float:
        """A number of this size: so odd that no two sums of them are equal by chance."""
        drawn = self.random.uniform(least, most)
        return drawn if self.real else float(round(drawn))


def drawn(number: int, *, real: bool = False, two_links: bool = False) -> list[Load]:
    """Jobs of a case that share a network; all of their routes may have `two_links`, and nothing else is on these."""
    draw = Draw(number, real)
    of = draw.random
    links = tuple(
        LinkCost(draw.time(100, of.choice((2_000, 50_000, 1_000_000))), draw.time(1, of.choice((3, 30, 300))))
        for _ in range(of.randint(2 if two_links else 1, 6))
    )
    unlike = of.sample(range(1, 200), 2 * MOST_PATHS * MOST_STAGES)
    cards = tuple(LinkCost(draw.time(100, 3_000), float(seconds_per_byte)) for seconds_per_byte in unlike)
    receives: Receives = of.choice(("early", "late", "late", "late-free-notice"))
    loads = []
    for job in range(of.choice((1, 1, 1, 2))):
        first = len(links) + job * MOST_PATHS * MOST_STAGES
        problem = replace(drawn_problem(draw, len(links), first, two_links), links=links + cards)
        name = of.choice(
            [name for name in ("1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-1f1b") if fits(name, problem)]
        )
        loads.append(Load(problem, generate(name, problem), job * draw.time(0, 3_000_000), receives))
    stamped = number % 4 == 1  # as netem
    changes = changes_drawn(number, links) if real and not two_links else ()
    streams = () if two_links else streams_drawn(number, links)
    problems = [replace(load.problem, changes=changes, streams=streams, stamped=stamped) for load in loads]
    return [load._replace(problem=problem) for load, problem in zip(loads, problems, strict=True)]


def streams_drawn(number: int, links: Sequence[LinkCost]) -> tuple[Stream, ...]:
    """Datagrams beside the jobs of a case: of two cases in three, in up to three streams.

    Each stream's times have a fraction of their own, so that no two datagrams come at the same instant.
    """
    of, found = random.Random(f"network/{number}/streams"), list[Stream]()
    for stream in range(of.randint(1, 3) if number % 3 else 0):
        route = tuple(of.sample(range(len(links)), min(len(links), of.choice((1, 1, 2, 3)))))
        size, at_s, spans = float(of.randint(100, 2_000)), (2 * stream + 1) / 64, list[StreamSpan]()
        wire_s = size * max(links[link].seconds_per_byte for link in route)
        for _ in range(of.choice((1, 1, 2, 4))):
            every_s, count = float(round(wire_s * of.uniform(1.3, 20))), of.randint(1, 200)
            end_s = at_s + round(every_s * (count + of.random()))
            spans.append(StreamSpan(at_s + round(every_s / 2), every_s, end_s))
            at_s = end_s + of.choice((0.0, float(of.randint(1, 300_000))))
        found.append(Stream(route, size, tuple(spans)))
    return tuple(found)


def changes_drawn(number: int, links: Sequence[LinkCost]) -> tuple[LinkChange, ...]:
    """What becomes of links in a case: of every other one, of some directions, up to six times each."""
    of = random.Random(f"network/{number}/changes")
    found = []
    for link, cost in enumerate(links) if number % 2 else ():
        at_s, sends, delay_s, per_byte = 0.0, True, cost.delay_s, cost.seconds_per_byte
        for left in reversed(range(of.choice((0, 1, 2, 6)))):
            at_s += of.uniform(1_000, 500_000)
            sends = not sends or left == 0 or of.random() < 0.6
            if sends:
                delay_s, per_byte = cost.delay_s * of.uniform(0.1, 4), cost.seconds_per_byte * of.uniform(0.3, 4)
            found.append(LinkChange(at_s, link, delay_s, per_byte if sends else math.inf))
    return tuple(sorted(found))


def fits(name: str, problem: Problem) -> bool:
    """Whether a family has the stages where the problem has them."""
    return FAMILIES[name].stage_to_rank(problem.n_ranks) == problem.stage_to_rank


def drawn_problem(draw: Draw, n_links: int, first_card: int, two_links: bool) -> Problem:
    """One job's: its routes go anywhere, also back another way than there; behind a rank's network card, if it has one.

    Every rank has the links from `first_card` on as its card, path after path.
    """
    of = draw.random
    ranks, microbatches = of.randint(1, MOST_STAGES), of.randint(1, 5)
    dp, tp = of.choice(((1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2), (1, 3), (2, 3), (1, 4)))
    stages = FAMILIES[of.choice(("1f1b", "1f1b", "zb-v", "interleaved-1f1b"))].stage_to_rank(ranks)
    unnoticed = draw.time(0, 200) * of.randint(0, 1)

    def times() -> tuple[float, ...]:
        return tuple(draw.time(1_000, 200_000) for _ in stages)

    carded = of.random() < 0.5

    def route(path: int, rank: int) -> tuple[int, ...]:
        links = tuple(of.sample(range(n_links), of.choice([n for n in (0, 1, 1, 2, 3) if n <= n_links])))
        if two_links:  # up over one half of them, down over the other one
            up, down = of.randrange(n_links // 2), of.randrange(n_links // 2, n_links)
            links = (down,) if carded else (up, down)
        return (first_card + path * ranks + rank, *links) if carded else links

    pieces = tuple(float(of.randint(300, 3_000)) for _ in range(ranks)) if of.random() < 0.8 else ()
    acks = tuple(float(of.randint(20, 90)) for _ in range(ranks)) if pieces and of.random() < 0.8 else ()
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    paths = [
        PipelineRoutes(
            {pair: route(path, pair[0]) for pair in pairs},
            pieces,
            acks,
            tuple(first_card + path * ranks + rank for rank in range(ranks)) if carded and tp > 1 else (),
        )
        for path in range(dp * tp)
    ]

    def sent() -> Exchanged:
        sizes = [Transfer(float(of.randint(0, 700)), float(of.randint(0, 90))) for _ in range(4)]
        return Exchanged(sizes[0], sizes[1], of.randint(1, 4), of.randint(1, 4), sizes[2], sizes[3])

    exchanged = tuple(sent() for _ in stages) if paths[0].rank_cards else ()
    limit = 2.0 * max(ranks, microbatches)
    problem = replace(
        uniform(ranks, microbatches, memory=limit, stage_to_rank=stages),
        forward_s=times(),
        input_s=times(),
        weight_s=times(),
        message_bytes=tuple(float(of.randint(400, 12_000)) for _ in stages[1:]),
        pipelines=tuple(paths),
        exchanged=exchanged,
        exchange_notice=Transfer(float(of.randint(0, 150)), float(of.randint(0, 90))),
        tensor=tp,
        handover_s=draw.time(20, 300),
        send_s=draw.time(0, 400) * of.randint(0, 1),
        wake_s=draw.time(0, 2_000) * of.randint(0, 1),
        notice_bytes=float(of.randint(50, 150)) * of.randint(0, 1),
        unnoticed_wait_s=unnoticed,
        begins_s=tuple(draw.time(0, 50_000) for _ in range(dp * ranks)),
    )
    if dp == 1:
        return problem
    sharded, algorithm = of.random() < 0.5, of.choice(("ring", "hierarchical"))
    sites = tuple(of.choice("ab") for _ in range(dp))
    found = exchange(algorithm, Members(sites, sharded, of.randint(1, 2) if algorithm == "hierarchical" else 1))

    def collectives(steps: tuple[CollectiveMessage, ...], kind: str) -> tuple[Collective, ...]:
        made = []
        for rank in stages:
            both = side_by_side(steps, tp)
            cell = of.randint(200, 5_000)
            sizes = {count: float(count * cell) for count in {step.n_cells for step in both}}
            ends = {(step.source, step.target) for step in both}
            ways = {way: route(way[0], rank) for one in ends for way in (one, one[::-1])}
            made.append(Collective(both, sizes, ways, {}, kind))
        return tuple(made)

    gathers = collectives(found.gather, "all-gather") if sharded else ()
    return replace(problem, all_gather=gathers, reductions=collectives(found.reduction, found.reduces_to))


def differences(number: int, *, real: bool = False, two_links: bool = False, compiled: bool | None = None) -> list[str]:
    """Where the model and the oracle differ in a case; [] where they agree."""
    program, _ = lower(drawn(number, real=real, two_links=two_links))
    modelled, expected = run(program, compiled=compiled), World(program).run()
    found = []
    for name in FIELDS:
        theirs = np.array([np.nan if one is None else float(one) for one in expected[name]])
        mine = getattr(modelled, name)
        if name == "sent_s":  # of a message that never leaves, and of one that waits: both know when it was made
            mine = np.where(np.isnan(theirs), np.nan, mine)
        limit = LIMIT * np.nanmax(theirs, initial=1.0) if real else 0.0
        off = np.flatnonzero(~((np.abs(mine - theirs) <= limit) | (np.isnan(mine) & np.isnan(theirs))))
        if len(off):
            first = min(off, key=lambda index: theirs[index])
            found.append(f"{name}: {len(off)} of {len(mine)}, first [{first}] {mine[first]!r} for {theirs[first]!r}")
    return found


def main() -> int:
    """Try the cases; 1 when one differs, 0 otherwise."""
    parser = options.parser(__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--real", action="store_true", help="times that are any numbers")
    parser.add_argument("--two-links", action="store_true", help="all routes have two links")
    arguments = parser.parse_args()
    wrong = 0
    for number in range(arguments.first, arguments.first + arguments.cases):
        if found := differences(number, real=arguments.real, two_links=arguments.two_links):
            wrong += 1
            print(f"case {number}: {'; '.join(found)}")
    kind = "any" if arguments.real else "whole"
    what = f"the model's network against one in which every packet is an event, {kind} numbers"
    what += ", routes of two links" if arguments.two_links else ""
    asked = "within 1e-12" if arguments.real else "equal to the last bit"
    return finish(arguments, Topic.TRUTH, [each(what, wrong, arguments.cases, asked)])


if __name__ == "__main__":
    sys.exit(main())
