"""What a job believes of links and ranks: delay and rate between datacenters, slots of ranks, each with an interval.

All of it is learnt from what the job sees itself (sightings.py). A belief changes where the values since the last alarm
agree on something else; until then it stays as it is, which is how a job begins: with what was planned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from testbed.adaptation.level import ALARM, LEAST_SIGMA, Level, WindowedMinimum
from testbed.adaptation.sightings import PROBE_BYTES, ActionTimes, Crossing, Path, RankKind, Sighting
from testbed.pipeline.ir import Kind

WINDOW = 10
"""Iterations of which the least time of a message counts: BBR's for its delay."""

CONFIRMING = 2
"""Iterations that have to agree before anything is believed."""

EVIDENT = 0.2
"""By so much even the least time of a message has to be another one for an iteration to be believed by itself: it is
that of many messages, where a probe is a single one. The same of the mean of a rank's actions, which also has to be
further away than chance among them explains, by as many standard errors as make an alarm."""

RECOGNISED = 0.02
"""By so much messages may take another time than they did before, to be in one iteration what they were before."""

CHANGED = 0.1
"""By this share times have to be others than believed: below it most alarms are false (Greyhound, ATC'25: 18 to 34 %
without such a limit, none with it)."""

MATTERS = 0.01
"""And by this share of a slot: what is less moves no iteration."""

CONFIDENCE = 1.96
"""Standard errors on either side of a mean that hold it in 95 of 100 cases."""


class Interval(NamedTuple):
    """An estimate, and between what the truth should lie."""

    value: float
    low: float
    high: float


def exactly(value: float) -> Interval:
    """What is planned."""
    return Interval(value, value, value)


def _about(value: float) -> Interval:
    """What a single iteration says: within what is corrected by none that comes after it."""
    return Interval(value, (1 - CHANGED) * value, (1 + CHANGED) * value)


class PathEstimate(NamedTuple):
    """From one datacenter to another, over whatever links."""

    delay_s: Interval
    rate_bps: Interval
    """Infinite where a message takes no longer than a probe."""

    def crossing_s(self, size: float) -> float:
        """What a message of so many wire bytes takes."""
        return self.delay_s.value + 8 * size / self.rate_bps.value


@dataclass(frozen=True)
class Belief:
    """What links and ranks are, as far as the job knows."""

    paths: Mapping[Path, PathEstimate]
    """What a path was when the job last used it or looked at it, else as planned."""
    slots: Mapping[RankKind, Interval]
    used: frozenset[Path] = frozenset()
    """Paths that it uses, or has used or looked at; of links that only others cross it knows nothing."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal of beliefs that say the same."""
        return tuple(sorted(self.paths.items())), tuple(sorted(self.slots.items())), self.used


def vouched_for(belief: Belief, planned: Belief, fresh: Collection[Path]) -> list[Path]:
    """Paths that are believed to be others than planned since they were seen last, and all of whose links are crossed
    by `fresh` ones that are as planned: what was the matter with them is over.
    """
    good = {link for path in fresh if belief.paths[path] == planned.paths[path] for link in path.route}
    stale = (path for path in belief.paths if path not in fresh and belief.paths[path] != planned.paths[path])
    return [path for path in stale if good.issuperset(path.route)]


def between(one: Belief, other: Belief, share: float) -> Belief:
    """Neither, but so much of the way from one to the other: of delays, of times on the wire, of slots."""

    def mixed(a: float, b: float) -> Interval:
        return exactly((1 - share) * a + share * b)

    paths = {}
    for which, path in one.paths.items():
        then = other.paths[which]
        wire_s = mixed(1 / path.rate_bps.value, 1 / then.rate_bps.value).value
        delay_s = mixed(path.delay_s.value, then.delay_s.value)
        mean = PathEstimate(delay_s, exactly(1 / wire_s if wire_s else math.inf))
        paths[which] = mean if path != then else path
    slots = {which: mixed(slot.value, other.slots[which].value) for which, slot in one.slots.items()}
    return Belief(paths, slots, other.used)


def path_of(crossing: Crossing, probe_s: float, message_s: float) -> tuple[float, float]:
    """(delay, rate) from the times of two sizes: r = (s2 - s1) / (y2 - y1), d = y1 - s1 / r."""
    more_s, more_bytes = message_s - probe_s, crossing.message_bytes - PROBE_BYTES
    rate_bps = 8 * more_bytes / more_s if more_s > 0 and more_bytes > 0 else math.inf
    return max(0.0, probe_s - 8 * PROBE_BYTES / rate_bps), rate_bps


@dataclass
class _Path:
    """What is known of the messages between two datacenters since the last alarm."""

    levels: tuple[Level, Level] = field(default_factory=lambda: (Level(), Level()))
    probes: WindowedMinimum = field(default_factory=lambda: WindowedMinimum(WINDOW))
    messages: WindowedMinimum = field(default_factory=lambda: WindowedMinimum(WINDOW))
    known: list[PathEstimate] = field(default_factory=list)
    """What was believed of it at any time."""
    last: Crossing | None = None
    evident: bool = False
    """Whether the latest alarm needs no other iteration to say the same."""

    def add(self, crossing: Crossing) -> bool:
        alarms = [
            level.add(value) for level, value in zip(self.levels, (crossing.probe_s, crossing.message_s), strict=True)
        ]
        self.evident = False
        if alarm := any(alarms):
            before_s = min(self.messages.values)
            self.evident = abs(crossing.message_s - before_s) > EVIDENT * before_s
            self.probes.reset()
            self.messages.reset()
        self.probes.add(crossing.probe_s)
        self.messages.add(crossing.message_s)
        self.last = crossing
        return alarm

    def told(self, crossing: Crossing) -> Crossing:
        """A crossing of messages that are longer than a probe; where they are not, of such as there were before, at the
        rate that is believed, or a higher one where even a probe was faster.
        """
        if crossing.tells_rate:
            return crossing
        size = self.last.message_bytes if self.last else 2 * PROBE_BYTES
        per_byte_s = min(8 / self.known[-1].rate_bps.value, crossing.probe_s / PROBE_BYTES)
        return Crossing(crossing.probe_s, crossing.probe_s + per_byte_s * (size - PROBE_BYTES), size)

    def reread(self, factor: float) -> None:
        """All messages so far took so many times as long beyond a probe, by themselves."""
        pairs = zip(self.probes.values, self.messages.values, strict=True)
        self.messages.replace([probe_s + factor * (message_s - probe_s) for probe_s, message_s in pairs])
        probe, message = self.levels
        message.move(probe.mean + factor * (message.mean - probe.mean))

    def estimate(self) -> PathEstimate | None:
        """None as long as too few iterations have said the same; what comes back is recognised by the first one, and
        what is evident believed.
        """
        if self.last is None:
            return None
        if len(self.probes.values) < CONFIRMING and not self.evident:
            return self.recognised(self.last)
        delay_s, rate_bps = path_of(self.last, min(self.probes.values), min(self.messages.values))
        if len(self.probes.values) < CONFIRMING:
            return PathEstimate(_about(delay_s), _about(rate_bps))
        every = [path_of(self.last, *pair) for pair in zip(self.probes.values, self.messages.values, strict=True)]
        delays, rates = zip(*every, (delay_s, rate_bps), strict=True)
        return PathEstimate(Interval(delay_s, min(delays), max(delays)), Interval(rate_bps, min(rates), max(rates)))

    def recognised(self, crossing: Crossing) -> PathEstimate | None:
        """What was believed when messages took the same times, if they ever did."""
        seen = (PROBE_BYTES, crossing.probe_s), (crossing.message_bytes, crossing.message_s)
        for path in reversed(self.known):
            if all(abs(path.crossing_s(size) - took_s) <= RECOGNISED * took_s for size, took_s in seen):
                return path
        return None


@dataclass
class _Rank:
    """What is known of a rank's actions since the last alarm."""

    planned_s: Mapping[Kind, float]
    """What its actions were planned to take: another schedule has other kinds of them, which must raise no alarm."""
    level: Level = field(default_factory=Level)
    """Of what they take, as so many times what was planned of as many."""
    seen: list[Mapping[Kind, ActionTimes]] = field(default_factory=list)
    evident: bool = False
    """Whether the latest alarm needs no other iteration to say the same."""

    def add(self, slots: Mapping[Kind, ActionTimes]) -> bool:
        planned_s = sum(self.planned_s[kind] * slot.actions for kind, slot in slots.items()) or 1.0
        ratio = sum(slot.mean_s * slot.actions for slot in slots.values()) / planned_s
        variance = sum(slot.actions * slot.deviation_s**2 for slot in slots.values())
        before, error = self.level.mean, math.sqrt(variance) / planned_s
        alarm = self.level.add(ratio, error)
        self.evident = alarm and abs(ratio - before) > max(EVIDENT * before, ALARM * error)
        if alarm:
            self.seen = []
        self.seen = [*self.seen[1 - WINDOW :], slots]
        return alarm

    @property
    def doubts(self) -> bool:
        """Whether too few iterations have said the same."""
        return len(self.seen) < CONFIRMING and not self.evident

    def estimate(self) -> dict[Kind, Interval]:
        """Empty as long as there are doubts."""
        if self.doubts:
            return {}
        return {kind: _mean([slots[kind] for slots in self.seen if kind in slots]) for kind in self.seen[-1]}


def _mean(slots: list[ActionTimes]) -> Interval:
    """Of all actions of several iterations."""
    count = sum(slot.actions for slot in slots)
    mean_s = sum(slot.mean_s * slot.actions for slot in slots) / count
    variance = sum(slot.actions * (slot.deviation_s**2 + (slot.mean_s - mean_s) ** 2) for slot in slots) / count
    error_s = CONFIDENCE * math.sqrt(variance / count)
    return Interval(mean_s, mean_s - error_s, mean_s + error_s)


class Learnt(NamedTuple):
    """What an iteration has taught."""

    alarms: tuple[str, ...]
    """What is not as it was: "paris -> warsaw", "rank 2"."""
    changes: tuple[str, ...]
    """And what is believed of it from now on, in the same words."""


class Estimator:
    """Learns from one iteration after the other."""

    def __init__(self, planned: Belief) -> None:
        self.belief, self._planned, self._in_use = planned, planned, frozenset(planned.paths)
        self._paths = {which: _Path(known=[path]) for which, path in planned.paths.items()}
        self._ranks = {
            number: _Rank({kind: slot.value for (rank, kind), slot in planned.slots.items() if rank == number})
            for number in sorted({rank for rank, _ in planned.slots})
        }

    def use(self, paths: Collection[Path]) -> None:
        """These are the paths that the job uses from now on."""
        self._in_use = frozenset(paths)
        self.belief = replace(self.belief, used=self.belief.used | self._in_use)

    def learn(self, seen: Sighting) -> Learnt:
        """Take an iteration. A belief changes once several in a row agree on another one."""
        crossings = {path: self._paths[path].told(each) for path, each in {**seen.crossings, **seen.looked}.items()}
        self.belief = replace(self.belief, used=self.belief.used.union(seen.looked))
        alarms = [named(path) for path, crossing in crossings.items() if self._paths[path].add(crossing)]
        by_rank: dict[int, dict[Kind, ActionTimes]] = {}
        for (rank, kind), slot in seen.slots.items():
            by_rank.setdefault(rank, {})[kind] = slot
        alarms += [f"rank {rank}" for rank, slots in by_rank.items() if self._ranks[rank].add(slots)]
        return Learnt(tuple(alarms), tuple(self._believe(seen, crossings)))

    def reread(self, factors: Mapping[Path, float]) -> None:
        """By so many times as long, beyond a probe, have messages so far been misread that waited for others."""
        for path, factor in factors.items():
            self._paths[path].reread(factor)

    @property
    def doubts(self) -> bool:
        """Whether an alarm waits for another iteration to say the same."""
        return bool(self.doubted & self._in_use) or any(rank.seen and rank.doubts for rank in self._ranks.values())

    @property
    def doubted(self) -> frozenset[Path]:
        """Paths, used or not, of which another crossing has to say what the last one did."""
        return frozenset(which for which, path in self._paths.items() if path.last and path.estimate() is None)

    def noise_s(self, which: Path) -> float:
        """By how much the times of packets differ on a path: as far as they were seen to, at least 1 % of what they
        take as planned."""
        probes = self._paths[which].probes.values
        spread_s = max(probes, default=0.0) - min(probes, default=0.0)
        return max(spread_s, LEAST_SIGMA * self._planned.paths[which].crossing_s(PROBE_BYTES))

    def _believe(self, seen: Sighting, crossings: Mapping[Path, Crossing]) -> list[str]:
        """Take over what is confirmed and differs; the names of that."""
        matters_s = MATTERS * min((slot.mean_s for slot in seen.slots.values() if slot.mean_s > 0), default=0.0)
        changes = []
        for which, crossing in crossings.items():
            path = self._paths[which]
            found = path.estimate()
            sizes = PROBE_BYTES, crossing.message_bytes
            if found is not None and _differs(found, self.belief.paths[which], sizes, matters_s):
                found = path.recognised(crossing) or found
                path.known = [*(other for other in path.known if other != found), found]
                self.belief = replace(self.belief, paths={**self.belief.paths, which: found})
                changes.append(named(which))
        for which in vouched_for(self.belief, self._planned, self._in_use | crossings.keys()) if seen.looked else ():
            planned = self._planned.paths[which]
            self._paths[which] = _Path(known=[*self._paths[which].known, planned])
            self.belief = replace(self.belief, paths={**self.belief.paths, which: planned})
            changes.append(named(which))
        for number, rank in self._ranks.items():
            of_kinds = {(number, kind): slot for kind, slot in rank.estimate().items()}
            known = self.belief.slots
            if any(_is_another(slot, known[which].value, matters_s) for which, slot in of_kinds.items()):
                self.belief = replace(self.belief, slots={**known, **_unseen(known, number, of_kinds), **of_kinds})
                changes.append(f"rank {number}")
        return changes


def _is_another(slot: Interval, known_s: float, matters_s: float) -> bool:
    """Whether actions take noticeably another time, and one that chance among them does not explain."""
    error_s = (slot.high - slot.value) / CONFIDENCE
    return abs(slot.value - known_s) > max(CHANGED * known_s, matters_s, ALARM * error_s)


def _unseen(
    known: Mapping[RankKind, Interval], number: int, seen: Mapping[RankKind, Interval]
) -> dict[RankKind, Interval]:
    """A rank's kinds of actions that the running schedule has none of: slower by as much as the others together."""
    before_s = sum(known[which].value for which in seen)
    factor = sum(slot.value for slot in seen.values()) / before_s if before_s else 1.0
    return {
        which: Interval(*(factor * value for value in slot))
        for which, slot in known.items()
        if which[0] == number and which not in seen
    }


def named(path: Path) -> str:
    """As reports call it."""
    return f"{path.source} -> {path.target}" + (f" over {path.over}" if path.over else "")


def _differs(found: PathEstimate, known: PathEstimate, sizes: tuple[float, float], matters_s: float) -> bool:
    """Whether a message of one of these sizes takes noticeably another time."""
    return any(
        abs(found.crossing_s(size) - known.crossing_s(size)) > max(CHANGED * known.crossing_s(size), matters_s)
        for size in sizes
    )
