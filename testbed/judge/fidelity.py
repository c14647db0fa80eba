"""Was a run what it says it was? A run that fails a check is untrusted and says why. The error is no part of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import few
from testbed.judge.iterations import IterationRow, median_and_iqr, median_known_to
from testbed.judge.messages import FlowMessages
from testbed.judge.witnesses import disturbance_s
from testbed.thresholds import (
    CLOCK_SHARE,
    CORE_SHARE,
    DISTURBED_SHARE,
    HOST_SHARE,
    LATE_START_S,
    LATE_START_SHARE,
    MACHINE_SHIFT_S,
    MEDIAN_KNOWN,
    MESSAGE_SHIFT_S,
    ORDER_PACKETS,
    ORDER_SHARE,
    OVERRUN_SHARE,
    SHIFT_BY_CHANCE,
    SPREAD,
    TRAFFIC_BYTES,
    TRAFFIC_PER_MESSAGE_BYTES,
    TRAFFIC_SHARE,
    Limit,
)
from testbed.units import show_time


class Check(NamedTuple):
    """One question of the verdict, with its answer."""

    question: str
    found: str
    limit: str
    why: str
    """The reason of the limit."""
    reasons: tuple[str, ...] = ()
    """Why the run is untrusted; none where it passes."""
    notes: tuple[str, ...] = ()
    """What was found and leaves the quoted median right."""
    not_taken: str = ""
    """Why the question could not be asked, so that it is neither passed nor failed; empty where it was."""

    @property
    def ok(self) -> bool:
        """Whether it is passed."""
        return not self.reasons and not self.not_taken


class DirectionCounters(NamedTuple):
    """One direction of a link while a case was trained."""

    direction: str
    counted_bytes: float
    planned_bytes: float
    messages: int
    """That crossed it, or were acknowledged across it."""


class ClockEvidence(NamedTuple):
    """Of ranks on machines of their own: how well times on one can be compared with those on another."""

    uncertainty_s: float
    """Between the two machines of which it is worst known, at the worst instant: so far off the offset may be."""
    contradictions: int
    """Exchanges that no offset explains: a clock was set, or runs at another pace than a clock may."""


class NetworkEvidence(NamedTuple):
    """What was counted while a schedule was trained."""

    drops: int
    """Frames that did not arrive, whether their loss was asked for or not."""
    retransmits: int
    other: dict[str, int]
    """TCP's other signs of loss or squeeze, by counter name, those above 0."""
    lossless: bool
    """Whether the experiment asked for a network without loss."""
    clocks: ClockEvidence | None = None
    """Of a network that no lab has made; None in a lab, which has one clock."""
    jitters: bool = False
    """Whether packets were to be delayed by chance."""
    full_queues: Sequence[tuple[str, int]] = ()
    """Directions whose queues had no room for so many packets, where those that were to be lost are known apart."""
    full_before: Sequence[tuple[str, int]] = ()
    """The same of packets that were sent between trainings: while ranks connected, mostly. TCP's windows are narrower
    behind that."""


class SlotsEvidence(NamedTuple):
    """Of a job whose workers failed: what did not fit the slots of recovery."""

    restarts_late_s: Sequence[float]
    """By how much the workers of each restart came to be connected later than its slot was over; 0 where it had
    room."""
    saves_late_s: Sequence[float]
    """The same of each state that was written to disk."""
    training_s: float
    """Of the whole training, failures included."""
    exchanges_late_s: float = 0.0
    """By how much all saves and restarts together took longer than foretold, but for these slots: what states took on
    links. 0 where the model has not all that the plan asks for, and in runs of earlier versions."""


class DisturbedTry(NamedTuple):
    """A training that was put aside, since the machine was busy otherwise."""

    explained: float
    """The share of the median iteration that the machine's own accounts could explain."""
    measured_s: float
    """That iteration."""


LINKS, TRAFFIC, MACHINE, IN_RUN = (
    "links as asked",
    "bytes off the plan, of allowed",
    "what this machine adds",
    "what messages added in the run",
)
"""Questions that only a lab can answer, which has made its links and counts what they carry."""

_NOT_TAKEN = {
    LINKS: "nobody made these links: what the topology says of them is believed, wan.json has what was measured",
    TRAFFIC: "nothing counts what the links of a real network carry, nor which routes it takes",
    MACHINE: "what comes on top of the prediction is the network's as well: nothing tells the two apart",
    IN_RUN: "what comes on top of the prediction is the network's as well: nothing tells the two apart",
}


def not_taken(question: str) -> Check:
    """One of the questions that only a lab can answer, on a network that none has made."""
    return Check(question, "not taken", "-", "only a lab can tell", not_taken=_NOT_TAKEN[question])


def clock_check(clocks: ClockEvidence, median_s: float) -> Check:
    """Whether times on different machines can be compared; `median_s` is the iteration."""
    share, limit = clocks.uncertainty_s / median_s, CLOCK_SHARE.value
    reasons = []
    if share > limit:
        reasons.append(
            f"between two machines times are known to ±{show_time(clocks.uncertainty_s)} only, {share:.1%} of the "
            f"iteration (limit {limit:.0%}): longer iterations tell more"
        )
    if clocks.contradictions:
        reasons.append(f"{clocks.contradictions} exchanges contradict others: a machine's clock was set meanwhile")
    found, allowed = (f"±{show_time(seconds)}" for seconds in (clocks.uncertainty_s, limit * median_s))
    return Check("clocks of the machines", found, allowed, CLOCK_SHARE.why, tuple(reasons))


def given_check(question: str, reasons: Sequence[str], why: str) -> Check:
    """A question that was answered before the first case: passed where nothing was found against it."""
    return Check(question, "no" if reasons else "yes", "yes", why, tuple(reasons))


def share_check(
    question: str, share: float, limit: Limit, reason: str, *, found: str = ".2%", allowed: str = ".0%"
) -> Check:
    """A question whose answer is a share, failed for `reason` where that is above its limit; the two are written so."""
    reasons = (reason,) if share > limit.value else ()
    return Check(question, f"{share:{found}}", f"{limit.value:{allowed}}", limit.why, reasons)


def run_checks(
    rows: Sequence[IterationRow],
    times_s: NDArray[np.float64],
    *,
    paced: bool,
    spread: Limit = SPREAD,
    loses: bool = False,
    jitters: bool = False,
) -> list[Check]:
    """What the measured iterations themselves tell; the middle half of their times, as far as they can be compared with
    each other, may `spread` by so much, or by more where the experiment asked for a network that `loses` packets or
    `jitters` and the median is well known all the same."""
    checks = [_memory(rows), _starts(rows), _spread(times_s, spread, by_chance=loses or jitters)]
    return [_slots(rows, loses=loses), *checks] if paced else checks


def _memory(rows: Sequence[IterationRow]) -> Check:
    off = any(row.held != row.peak_in_flight for row in rows)
    reason = "a rank held another number of microbatches than the order of its actions needs"
    why = "more: a leak; fewer: something was not computed"
    found = "otherwise" if off else "as ordered"
    return Check("microbatches held", found, "as ordered", why, (reason,) if off else ())


def _slots(rows: Sequence[IterationRow], *, loses: bool) -> Check:
    share = sum(row.overruns for row in rows) / sum(row.actions for row in rows)
    worst = max(row.worst_overrun_s for row in rows)
    reason = (
        f"{share:.1%} of the actions did not fit into their slots (worst by {worst * 1e3:.1f} ms, "
        f"limit {OVERRUN_SHARE.value:.0%}): longer pacing or a smaller model is needed"
    ) + (", unless that is what tensor ranks waited for packets that were lost" if loses else "")
    return share_check("actions beyond their slots", share, OVERRUN_SHARE, reason)


def _starts(rows: Sequence[IterationRow]) -> Check:
    share = float(np.mean([row.late_start_s > LATE_START_S for row in rows]))
    worst = max(row.late_start_s for row in rows)
    reason = f"a rank started late in {share:.0%} of the iterations (worst by {worst * 1e3:.1f} ms)"
    return share_check(f"iterations begun {show_time(LATE_START_S)} late", share, LATE_START_SHARE, reason, found=".0%")


def _spread(times_s: NDArray[np.float64], allowed: Limit, *, by_chance: bool) -> Check:
    median_s, iqr_s = median_and_iqr(times_s)
    spread = iqr_s / median_s
    reason = f"iteration times spread by {spread:.1%} (limit {allowed.value:.1%})"
    if not by_chance or spread <= allowed.value:
        return share_check("spread of iteration times", spread, allowed, reason, allowed=".1%")
    known, limit = median_known_to(times_s), MEDIAN_KNOWN
    reason += (
        f", and {len(times_s)} iterations tell their median to ±{known:.1%} only (limit ±{limit.per_cent}): "
        f"about {math.ceil(len(times_s) * (known / limit.value) ** 2)} would do"
    )
    return share_check("what the median is known to", known, limit, reason, found=".1%")


def profile_check(spread: float) -> Check:
    """Whether an unpaced job took the same time whenever it was profiled: its prediction is made of nothing else."""
    reason = f"what a rank was busy with spread by {spread:.1%} while it was profiled (limit {SPREAD.value:.0%})"
    return share_check("spread of the profile", spread, SPREAD, reason)


def core_check(rows: Sequence[IterationRow], baseline: Sequence[IterationRow]) -> Check:
    """Whether others took the cores of unpaced ranks more than while they were profiled (`baseline`)."""

    def share(some: Sequence[IterationRow]) -> float:
        return float(np.median([row.witnesses.rank_queued_s / row.makespan_s for row in some]))

    beyond = share(rows) - share(baseline)
    reason = (
        f"a rank stood in its core's queue for {share(rows):.1%} of the time, {share(baseline):.1%} while it was "
        f"profiled (limit: {CORE_SHARE.value:.1%} more): others computed on its core"
    )
    return share_check("a core taken by others", beyond, CORE_SHARE, reason, allowed=".1%")


def network_check(network: NetworkEvidence) -> Check:
    """Whether a lossless network lost anything."""
    why = "a lossless network loses nothing"
    if network.clocks is not None:
        return _sent_again(network)
    full = full_said(network.full_queues)
    if not network.lossless:
        notes = (f"of {network.drops} packets lost, {full}",) if full else ()
        return Check("packets lost", f"{network.drops}", "not lossless", why, notes=notes)
    reasons = []
    if network.drops:
        packets = "1 packet was" if network.drops == 1 else f"{network.drops} packets were"
        reasons.append(f"{packets} dropped on a network that should lose none{f'; {full}' if full else ''}")
    if network.retransmits:
        reasons.append(f"TCP retransmitted {network.retransmits} segments on a network that should lose none")
    if network.other:
        counts = ", ".join(f"{name} {count}" for name, count in network.other.items())
        reasons.append(f"TCP had to squeeze or drop: {counts}")
    signs = network.drops + network.retransmits + sum(network.other.values())
    return Check("signs of loss", f"{signs}", "0", why, tuple(reasons))


def full_said(queues: Sequence[tuple[str, int]]) -> str:
    """In words, of directions and the packets that they dropped; "" for none."""
    dropped = few([f"{label} dropped {count}" for label, count in queues])
    return f"a queue was full: {dropped}" if dropped else ""


def _sent_again(network: NetworkEvidence) -> Check:
    """Of a real network: it loses what it loses, and that is in the times; the topology may say something else."""
    notes = []
    if network.retransmits and network.lossless:
        notes.append(f"TCP sent {network.retransmits} segments again, on a network that the topology calls lossless")
    why = "a real network may lose some, which is in the times"
    return Check("segments sent again", f"{network.retransmits}", "-", why, notes=tuple(notes))


def traffic_check(traffic: Sequence[DirectionCounters], *, lossless: bool) -> Check:
    """Whether directions carried what the plan's routes send over them; where data is sent again, more is right."""
    reasons, worst = [], 0.0
    for counters in traffic:
        allowed = TRAFFIC_SHARE * counters.planned_bytes + TRAFFIC_PER_MESSAGE_BYTES * counters.messages + TRAFFIC_BYTES
        off = counters.counted_bytes - counters.planned_bytes
        worst = max(worst, (-off if off < 0 else off * lossless) / allowed)
        if off < -allowed or (lossless and off > allowed):
            reasons.append(
                f"{counters.direction} carried {counters.counted_bytes:.0f} bytes, its routes should bring "
                f"{counters.planned_bytes:.0f} (±{allowed:.0f}): traffic did not take the routes of the plan"
            )
    why = "headers and acknowledgements differ a little, a flow elsewhere by all"
    return Check(TRAFFIC, f"{worst:.0%}", "100%", why, tuple(reasons))


def message_check(
    flows: Sequence[FlowMessages],
    baseline_s: Sequence[float],
    differs_s: Sequence[float] = (),
    super_packets_s: Sequence[float] = (),
    *,
    real: bool = True,
    seldom: Sequence[bool] = (),
) -> Check:
    """Whether messages took what they took before the run; `baseline_s` per flow, the first quartile of its extra time.

    A link that changed shifts all its messages; what a machine does to some of them leaves the first quartile alone.
    `differs_s` (by chance) and `super_packets_s` as in Evidence. Not `real`: on the virtual clock.
    Flows that shifted `seldom` do not count: where only late arrivals are known, the quartile is that of these alone.
    """
    rare = {flow[:3] for flow, rarely in zip(flows, seldom, strict=False) if rarely}
    shifts = shifts_of(flows, baseline_s, differs_s, super_packets_s, real=real)
    shifts = [shift for shift in shifts if shift.flow[:3] not in rare]
    reasons = tuple(shift.reason() for shift in shifts if abs(shift.seconds) > shift.limit_s)
    worst = max(shifts, key=lambda shift: abs(shift.seconds) / shift.limit_s, default=None)
    found_s, limit_s = (worst.seconds, worst.limit_s) if worst else (0.0, MESSAGE_SHIFT_S.value)
    why = "; ".join(filter(None, (MESSAGE_SHIFT_S.why, worst and worst.why_more())))
    question = "messages' times since measured"
    return Check(question, f"{found_s * 1e3:+.2f} ms", f"{limit_s * 1e3:.1f} ms", why, reasons)


def shifts_of(
    flows: Sequence[FlowMessages],
    baseline_s: Sequence[float],
    differs_s: Sequence[float],
    super_packets_s: Sequence[float],
    *,
    real: bool,
) -> list[Shift]:
    """As `message_check`: by how much each flow shifted, those left out of which no arrival is known."""
    nothing = [0.0] * len(flows)
    packets_s: Sequence[float | None] = super_packets_s or [None] * len(flows)
    known = zip(flows, baseline_s, differs_s or nothing, packets_s, strict=True)
    return [
        Shift(flow, flow.extra_p25_s - baseline, differs, packet, real)
        for flow, baseline, differs, packet in known
        if flow.extra_p25_s is not None
    ]


class Shift(NamedTuple):
    """By how much the messages of a flow take longer than before the run."""

    flow: FlowMessages
    seconds: float
    differs_s: float
    """By chance."""
    packet_s: float | None
    """What one super-packet takes on the slowest link; 0 where no link is on the way, None where it is not known."""
    real: bool
    """Whether on a real clock."""

    @property
    def limit_s(self) -> float:
        """How much it may be."""
        return max(MESSAGE_SHIFT_S.value, self._with_packet_s, SHIFT_BY_CHANCE * self.differs_s)

    @property
    def _with_packet_s(self) -> float:
        return MACHINE_SHIFT_S + (1 if self.real else ORDER_PACKETS) * (self.packet_s or 0.0)

    def why_more(self) -> str:
        """Why the limit is more than usual; "" where it is not."""
        if self.limit_s == MESSAGE_SHIFT_S.value:
            return ""
        if self.limit_s == self._with_packet_s:
            many = "one super-packet" if self.real else f"each of {ORDER_PACKETS} super-packets"
            return f"{show_time(self.packet_s or 0.0)} of it for {many} on the slowest link"
        return "these few messages scattered as much before the run"

    def reason(self) -> str:
        """Why the run is untrusted where it is more."""
        more = self.why_more() and f", {self.why_more()}"
        busier = "busier than then, or is so under this schedule" if self.seconds > 0 else "less busy than then"
        inside = f"no link is on their way, so this machine was {busier}"
        return (
            f"{self.flow.kind}s from rank {self.flow.source_rank} to {self.flow.target_rank} were on their way "
            f"{show_time(abs(self.seconds))} {'longer' if self.seconds > 0 else 'shorter'} than predicted and measured "
            f"before the run (first quartile, limit {show_time(self.limit_s)}{more}): "
            f"{inside if self.packet_s == 0 and self.real else 'something changed'}"
        )


def host_check(predicted_s: float, on_this_host_s: float) -> Check:
    """Whether this machine, as it was before the run, is fast enough for the plan."""
    share = on_this_host_s / predicted_s - 1
    reason = (
        f"this machine adds {share:.1%} to the iteration, as measured before the run (limit "
        f"{HOST_SHARE.value:.1%}): longer slots, smaller messages, a quieter machine, or --clock virtual"
    )
    return share_check(MACHINE, share, HOST_SHARE, reason, allowed=".1%")


def in_run_check(predicted_s: float, in_run_s: float) -> Check:
    """Whether messages, each a little longer on its way than before the run, make the iteration much longer together.

    By what the messages took, through the model: not by what the iterations took.
    """
    share = in_run_s / predicted_s - 1
    reason = (
        f"messages that take as long as in this run make an iteration {share:+.1%} longer than predicted (limit "
        f"{HOST_SHARE.value:.1%}): links that are a little slower than asked for, or this machine under this schedule"
    )
    off, limit = abs(share) > HOST_SHARE.value, f"{HOST_SHARE.value:.1%}"
    return Check(IN_RUN, f"{share:+.2%}", limit, HOST_SHARE.why, (reason,) if off else ())


def order_check(overtaken_s: float, predicted_s: float) -> Check:
    """Whether what replicas send each other over a link they share came in the order that was predicted.

    Flow by flow these messages count with their mean, so that no other check sees it.
    """
    share = overtaken_s / predicted_s
    reason = (
        f"what replicas send each other over one link came out of turn, by {show_time(overtaken_s)} "
        f"or {share:.1%} of the iteration (limit {ORDER_SHARE.value:.1%}); --clock virtual keeps the order"
    )
    return share_check("replicas' messages out of turn", share, ORDER_SHARE, reason, allowed=".1%")


def slots_check(slots: SlotsEvidence, limit: Limit) -> Check:
    """Whether what a job did to recover fitted its slots: goodput is foretold with these."""
    kinds = {
        "restart": (slots.restarts_late_s, "the slot, in which workers connect: restart= is too short"),
        "save": (slots.saves_late_s, "the slot, in which states are written: save= is too short"),
    }
    share = (sum(sum(late_s) for late_s, _ in kinds.values()) + abs(slots.exchanges_late_s)) / slots.training_s
    told_s = limit.value / (len(kinds) + 1) * slots.training_s  # of what is more than the limit, one is
    said = [
        _later(kind, [seconds for seconds in late_s if seconds > 0], what)
        for kind, (late_s, what) in kinds.items()
        if sum(late_s) > told_s
    ]
    if abs(slots.exchanges_late_s) > told_s:
        longer = "longer" if slots.exchanges_late_s > 0 else "shorter"
        said.append(f"states took {show_time(abs(slots.exchanges_late_s))} {longer} over links than foretold")
    longer = "longer" if slots.exchanges_late_s >= 0 else "longer or shorter"
    off = f"the training took {share:.1%} {longer} (limit {limit.value:.2%}), so goodput is off"
    why = "goodput is foretold with these slots, and what states take over links"
    found = share_check("recovery in its slots", share, limit._replace(why=why), "; ".join([*said, off]), allowed=".2%")
    return found if found.reasons else found._replace(notes=tuple(said))


def _later(kind: str, late_s: Sequence[float], what: str) -> str:
    several = f"{len(late_s)} {kind}s were up to" if len(late_s) > 1 else f"1 {kind} was"
    return f"{several} {show_time(max(late_s))} longer than {what}"


def disturbed_share(rows: Sequence[IterationRow], baseline: Sequence[IterationRow]) -> float:
    """What share of the median iteration the machine's own accounts could explain; `baseline` as in witnesses.py."""
    return float(np.median(disturbance_s(rows, baseline) / np.array([row.makespan_s for row in rows])))


def disturbance_check(
    rows: Sequence[IterationRow], baseline: Sequence[IterationRow], before: Sequence[DisturbedTry] = ()
) -> Check:
    """Whether the machine's own accounts could explain a share of the iterations; `before`: what was put aside."""
    share = disturbed_share(rows, baseline)
    reason = (
        f"the machine was busy otherwise: stolen time, late wake-ups and queues could explain {share:.1%} of the "
        f"median iteration (limit {DISTURBED_SHARE.value:.0%}); stop other work, or use --clock virtual"
    )
    aside = " and ".join(f"{one.explained:.1%} of the {show_time(one.measured_s)}" for one in before)
    notes = (f"trained {len(before) + 1} times: disturbances could explain {aside} put aside",) if before else ()
    return share_check("what disturbances explain", share, DISTURBED_SHARE, reason)._replace(notes=notes)
