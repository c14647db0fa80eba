"""Was a run what it says it was? A run that fails a check is untrusted and says why. The error is no part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from testbed.judge.iterations import IterationRow
from testbed.judge.messages import FlowMessages
from testbed.judge.witnesses import disturbance_s
from testbed.thresholds import (
    CORE_SHARE,
    DISTURBED_SHARE,
    HOST_SHARE,
    LATE_START_S,
    LATE_START_SHARE,
    MESSAGE_SHIFT_S,
    OVERRUN_SHARE,
    SPREAD,
    TRAFFIC_BYTES,
    TRAFFIC_PER_MESSAGE_BYTES,
    TRAFFIC_SHARE,
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

    @property
    def ok(self) -> bool:
        """Whether it is passed."""
        return not self.reasons


class Traffic(NamedTuple):
    """One direction of a link while a case was trained."""

    direction: str
    counted_bytes: float
    planned_bytes: float
    messages: int
    """That crossed it, or were acknowledged across it."""


class NetworkEvidence(NamedTuple):
    """What the lab counted while a schedule was trained."""

    drops: int
    retransmits: int
    other: dict[str, int]
    """TCP's other signs of loss or squeeze, by counter name, those above 0."""
    lossless: bool
    """Whether the experiment asked for a network without loss."""


def given_check(question: str, reasons: Sequence[str], why: str) -> Check:
    """A question that was answered before the first case: passed where nothing was found against it."""
    return Check(question, "no" if reasons else "yes", "yes", why, tuple(reasons))


def run_checks(rows: Sequence[IterationRow], *, paced: bool) -> list[Check]:
    """What the measured iterations themselves tell."""
    checks = [_memory(rows), _starts(rows), _spread(rows)]
    return [_slots(rows), *checks] if paced else checks


def _memory(rows: Sequence[IterationRow]) -> Check:
    off = any(row.held != row.peak_in_flight for row in rows)
    reason = "a rank held another number of microbatches than the order of its actions needs"
    why = "more: a leak; fewer: something was not computed"
    found = "otherwise" if off else "as ordered"
    return Check("microbatches held", found, "as ordered", why, (reason,) if off else ())


def _slots(rows: Sequence[IterationRow]) -> Check:
    share = sum(row.overruns for row in rows) / sum(row.actions for row in rows)
    worst = max(row.worst_overrun_s for row in rows)
    reason = (
        f"{share:.1%} of the actions did not fit into their slots (worst by {worst * 1e3:.1f} ms, "
        f"limit {OVERRUN_SHARE.value:.0%}): longer pacing or a smaller model is needed"
    )
    over = share > OVERRUN_SHARE.value
    limit = f"{OVERRUN_SHARE.value:.0%}"
    return Check("actions beyond their slots", f"{share:.2%}", limit, OVERRUN_SHARE.why, (reason,) if over else ())


def _starts(rows: Sequence[IterationRow]) -> Check:
    share = float(np.mean([row.late_start_s > LATE_START_S for row in rows]))
    worst = max(row.late_start_s for row in rows)
    reason = f"a rank started late in {share:.0%} of the iterations (worst by {worst * 1e3:.1f} ms)"
    late = share > LATE_START_SHARE.value
    question = f"iterations begun {show_time(LATE_START_S)} late"
    limit = f"{LATE_START_SHARE.value:.0%}"
    return Check(question, f"{share:.0%}", limit, LATE_START_SHARE.why, (reason,) if late else ())


def _spread(rows: Sequence[IterationRow]) -> Check:
    low, median, high = np.percentile([row.makespan_s for row in rows], (25, 50, 75))
    spread = (high - low) / median
    reason = f"iteration times spread by {spread:.1%} (limit {SPREAD.value:.0%})"
    wide = spread > SPREAD.value
    limit = f"{SPREAD.value:.0%}"
    return Check("spread of iteration times", f"{spread:.2%}", limit, SPREAD.why, (reason,) if wide else ())


def profile_check(spread: float) -> Check:
    """Whether an unpaced job took the same time whenever it was profiled: its prediction is made of nothing else."""
    reason = f"what a rank was busy with spread by {spread:.1%} while it was profiled (limit {SPREAD.value:.0%})"
    wide = spread > SPREAD.value
    limit = f"{SPREAD.value:.0%}"
    return Check("spread of the profile", f"{spread:.2%}", limit, SPREAD.why, (reason,) if wide else ())


def core_check(rows: Sequence[IterationRow], usual: Sequence[IterationRow]) -> Check:
    """Whether others took the cores of unpaced ranks more than while they were profiled (`usual`)."""

    def share(some: Sequence[IterationRow]) -> float:
        return float(np.median([row.witnesses.rank_queued_s / row.makespan_s for row in some]))

    beyond = share(rows) - share(usual)
    reason = (
        f"a rank stood in its core's queue for {share(rows):.1%} of the time, {share(usual):.1%} while it was profiled "
        f"(limit: {CORE_SHARE.value:.1%} more): others computed on its core"
    )
    limit = f"{CORE_SHARE.value:.1%}"
    off = beyond > CORE_SHARE.value
    return Check("a core taken by others", f"{beyond:.2%}", limit, CORE_SHARE.why, (reason,) if off else ())


def network_check(network: NetworkEvidence) -> Check:
    """Whether a lossless network lost anything."""
    why = "a lossless network loses nothing"
    if not network.lossless:
        return Check("packets lost", f"{network.drops}", "not lossless", why)
    reasons = []
    if network.drops:
        reasons.append(f"{network.drops} packets were dropped on a network that should lose none")
    if network.retransmits:
        reasons.append(f"TCP retransmitted {network.retransmits} segments on a network that should lose none")
    if network.other:
        counts = ", ".join(f"{name} {count}" for name, count in network.other.items())
        reasons.append(f"TCP had to squeeze or drop: {counts}")
    signs = network.drops + network.retransmits + sum(network.other.values())
    return Check("signs of loss", f"{signs}", "0", why, tuple(reasons))


def traffic_check(traffic: Sequence[Traffic], *, lossless: bool) -> Check:
    """Whether directions carried what the plan's routes send over them; where data is sent again, more is right."""
    reasons, worst = [], 0.0
    for one in traffic:
        allowed = TRAFFIC_SHARE * one.planned_bytes + TRAFFIC_PER_MESSAGE_BYTES * one.messages + TRAFFIC_BYTES
        off = one.counted_bytes - one.planned_bytes
        worst = max(worst, (-off if off < 0 else off * lossless) / allowed)
        if off < -allowed or (lossless and off > allowed):
            reasons.append(
                f"{one.direction} carried {one.counted_bytes:.0f} bytes, its routes should bring "
                f"{one.planned_bytes:.0f} (±{allowed:.0f}): traffic did not take the routes of the plan"
            )
    why = "headers and acknowledgements differ a little, a flow elsewhere by all"
    return Check("bytes off the plan, of allowed", f"{worst:.0%}", "100%", why, tuple(reasons))


def message_check(flows: Sequence[FlowMessages], usual_s: Sequence[float]) -> Check:
    """Whether messages took what they took before the run; `usual_s` per flow, the first quartile of its extra time.

    A link that changed shifts all its messages; what a machine does to some of them leaves the first quartile alone.
    """
    pairs = zip(flows, usual_s, strict=True)
    shifts = [(flow, flow.extra_p25_s - usual) for flow, usual in pairs if flow.extra_p25_s is not None]
    reasons = tuple(
        f"{flow.kind}s from rank {flow.source_rank} to {flow.target_rank} were on their way {show_time(abs(shift))} "
        f"{'longer' if shift > 0 else 'shorter'} than predicted and measured before the run (first quartile, limit "
        f"{show_time(MESSAGE_SHIFT_S.value)}): something changed"
        for flow, shift in shifts
        if abs(shift) > MESSAGE_SHIFT_S.value
    )
    worst = max((shift for _, shift in shifts), key=abs, default=0.0)
    question = "messages' times since measured"
    limit = f"{MESSAGE_SHIFT_S.value * 1e3:.1f} ms"
    return Check(question, f"{worst * 1e3:+.2f} ms", limit, MESSAGE_SHIFT_S.why, reasons)


def host_check(predicted_s: float, on_this_host_s: float) -> Check:
    """Whether this machine, as it was before the run, is fast enough for the plan."""
    share = on_this_host_s / predicted_s - 1
    reason = (
        f"this machine adds {share:.1%} to the iteration, as measured before the run (limit "
        f"{HOST_SHARE.value:.1%}): longer slots, smaller messages, a quieter machine, or --clock virtual"
    )
    slow = share > HOST_SHARE.value
    limit = f"{HOST_SHARE.value:.1%}"
    return Check("what this machine adds", f"{share:.2%}", limit, HOST_SHARE.why, (reason,) if slow else ())


def disturbance_check(rows: Sequence[IterationRow], usual: Sequence[IterationRow]) -> Check:
    """Whether the machine's own accounts could explain a share of the iteration times; `usual` as in witnesses.py."""
    shares = disturbance_s(rows, usual) / np.array([row.makespan_s for row in rows])
    share = float(np.median(shares))
    reason = (
        f"the machine was busy otherwise: stolen time, late wake-ups and queues could explain {share:.1%} of the "
        f"median iteration (limit {DISTURBED_SHARE.value:.0%}); stop other work, or use --clock virtual"
    )
    busy = share > DISTURBED_SHARE.value
    limit = f"{DISTURBED_SHARE.value:.0%}"
    return Check("what disturbances explain", f"{share:.2%}", limit, DISTURBED_SHARE.why, (reason,) if busy else ())
