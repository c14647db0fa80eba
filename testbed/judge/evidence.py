"""All that the verdict on a case rests on, and the verdict. results/recheck.py makes it of the files of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.grouping import grouped
from testbed.judge import changes, fidelity, numerics, parameter_checks
from testbed.judge.changes import FlowParts
from testbed.judge.execution import ExecutedRow, execution_check
from testbed.judge.fidelity import IN_RUN, LINKS, MACHINE, TRAFFIC, Check, DirectionCounters, NetworkEvidence
from testbed.judge.iterations import IterationRow
from testbed.judge.messages import FlowMessages, KnownTimes
from testbed.judge.network_chance import FlowChance
from testbed.judge.witnesses import disturbed
from testbed.pipeline.ir import Row
from testbed.thresholds import (
    CHANGE_CERTAIN,
    CHANGE_SHARE,
    CHANGE_SHIFT_VIRTUAL_S,
    MESSAGE_SHIFT_S,
    MODEL_SHARE,
    ORDER_PACKETS,
    SPREAD,
    SPREAD_VIRTUAL,
    Limit,
)
from testbed.train.assignment import Fingerprint, ReferenceOutcome, last_compared


class Profiling(NamedTuple):
    """Of an unpaced job: how it was profiled."""

    pinning_reasons: Sequence[str]
    """Why what ranks take cannot be trusted."""
    spread: float


class CaseEvidence(NamedTuple):
    """What was found out about one case."""

    paced: bool
    real: bool
    """Whether it ran on a real clock."""
    link_reasons: Sequence[str]
    """Of the links that are not as asked."""
    profiling: Profiling | None
    rows: Sequence[IterationRow]
    """All iterations, warm-up included."""
    baseline: Sequence[IterationRow]
    """Iterations of the same job, measured before: what this machine always takes. Empty where nothing was."""
    network: NetworkEvidence
    traffic: Sequence[DirectionCounters]
    reference: ReferenceOutcome
    predicted_s: float
    """The median of what was predicted of the measured iterations."""
    on_this_host_s: float | None
    """Predicted with what this machine adds; None where that was not measured."""
    flows: Sequence[FlowMessages]
    overtaken_s: float
    """What replicas' messages that were to come one after the other have changed places by, in the usual iteration."""
    baseline_extra_s: Sequence[float] | None
    """Per flow, the first quartile of its messages' extra time before the case; 0 where the machine adds nothing. None
    where it is not known what messages should take."""
    baseline_differs_s: Sequence[float] = ()
    """Per flow, by how much this quartile differs by chance from that of the case (ExtraTimes.differs_s); empty where
    the machine adds nothing."""
    super_packets_s: Sequence[float] = ()
    """Per flow, what one super-packet takes on the slowest link of its route; empty on the virtual clock where nothing
    comes by chance first, so that they are in their places."""
    quartiles_s: Sequence[NDArray[np.float64]] = ()
    """Per flow, the quartiles of its messages' extra time in each measured iteration; see messages.by_iteration."""
    routes: Sequence[Sequence[str]] = ()
    """Per flow, the directions that it crosses, a network card first."""
    range_s: tuple[float, float] | None = None
    """Between what the prediction lies by who comes first; None where that is one time."""
    in_run_s: float | None = None
    """Predicted with what messages took beyond the model in the run itself; None where `on_this_host_s` is, and of
    several jobs."""
    modelled: bool = False
    """Whether the model has all that the plan asks for."""
    fingerprints: Sequence[Fingerprint] = ()
    """Of gradients and weights in the first and in the last compared iteration, all ranks together."""
    own_predicted_s: Sequence[float] | NDArray[np.float64] = ()
    """Per measured iteration, what was predicted of it; () where that is `predicted_s` of all."""
    executed: Sequence[ExecutedRow] = ()
    """What every rank did, in what order, warm-up included."""
    planned: Mapping[int, Row] = MappingProxyType({})
    """By rank, what the plan has for the case; empty where no plan was kept."""
    free: bool = False
    """Whether jobs run freely: `predicted_s` and the range are of the mean iteration, and which message comes first in
    one iteration decides how the next ones meet."""

    disturbed_before: Sequence[fidelity.DisturbedTry] = ()
    """What was trained before, and put aside."""

    known_times: Sequence[KnownTimes] = ()
    """Per flow; empty where the next two are."""
    jitter_s: Sequence[float | None] = ()
    """Per flow, by how much jitter may move a message, None where it is not held against the model; empty where the
    model lacks other things than losses, jitter and gloo's own all-reduce, or nothing, and on a real clock."""
    losses_touch: Sequence[float] = ()
    """The same of the share of messages whose time losses, or gloo's all-reduce, may change."""

    slots: fidelity.SlotsEvidence | None = None
    """None where workers cannot fail."""

    takes_part: Mapping[int, Sequence[int]] | None = None
    """By rank that ever has a part, the iterations in which it has; None: all have in all."""
    continued: Sequence[int] = ()
    """The iterations that are the first of other replicas than before."""

    @property
    def compared(self) -> list[int]:
        """The iterations, beside the first, whose weights are compared."""
        last = last_compared(len(self.rows))
        return [*(number for number in self.continued if number < last), last]

    @property
    def measured(self) -> list[IterationRow]:
        """The iterations that count."""
        return [row for row in self.rows if not row.warmup]

    @property
    def drifts(self) -> bool:
        """Whether chance decides how iterations of jobs meet: they are compared all together."""
        return self.free and self.range_s is not None

    @property
    def comparable_s(self) -> NDArray[np.float64]:
        """The time of every measured iteration, as if all of them had been predicted to take the same."""
        times_s = np.array([row.makespan_s for row in self.measured])
        if not len(self.own_predicted_s):
            return times_s
        if self.drifts:  # the same iterations may come in another order
            return np.sort(times_s) * (self.predicted_s / np.sort(self.own_predicted_s))
        comparable_s: NDArray[np.float64] = times_s * (self.predicted_s / np.asarray(self.own_predicted_s))
        return self._of_like_replicas(comparable_s) if self.real and self.takes_part is not None else comparable_s

    def _of_like_replicas(self, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same where each set of replicas has the median of all: what a machine adds to the messages of more of
        them is no change."""
        takes_part = self.takes_part or {}
        sets = [frozenset(r for r, those in takes_part.items() if row.iteration in those) for row in self.measured]
        found, median_s = times_s.copy(), float(np.median(times_s))
        for places in grouped((those, place) for place, those in enumerate(sets)).values():
            found[places] *= median_s / float(np.median(times_s[places]))
        return found


def judge(case: CaseEvidence) -> list[Check]:
    """Every question of the verdict; a case is trusted when all are passed."""
    rows, host_s, in_lab = case.measured, case.on_this_host_s, case.network.clocks is None
    checks = [
        *_given(case),
        *([execution_check(case.executed, case.planned, case.takes_part)] if case.planned else []),
        *fidelity.run_checks(
            rows,
            case.comparable_s,
            paced=case.paced,
            spread=_spread(case),
            loses=not case.network.lossless,
            jitters=case.network.jitters,
        ),
        fidelity.network_check(case.network),
        *_of_network(case),
        numerics.loss_check([row.loss for row in case.rows], case.reference),
        numerics.gradient_check(case.rows, case.reference),
        *parameter_checks.parameter_checks(case.fingerprints, case.reference, case.compared),
    ]
    if case.real:
        checks.append(numerics.count_check(len(rows)))
        checks.append(fidelity.disturbance_check(rows, case.baseline, case.disturbed_before))
        checks.append(fidelity.order_check(case.overtaken_s, case.predicted_s))
    if case.slots is not None:
        checks.append(fidelity.slots_check(case.slots, CHANGE_SHARE if case.real else MODEL_SHARE))
    if case.profiling is not None:
        checks.append(fidelity.core_check(rows, case.baseline))
    if host_s is not None:
        checks.append(fidelity.host_check(case.predicted_s, host_s) if in_lab else fidelity.not_taken(MACHINE))
    if case.in_run_s is not None:
        checks.append(fidelity.in_run_check(case.predicted_s, case.in_run_s) if in_lab else fidelity.not_taken(IN_RUN))
    if (known := _shifted(case)) is not None:
        checks.append(fidelity.message_check(*known, real=case.real, seldom=_seldom(case)))
    if case.quartiles_s:
        checks.append(_against_model(case) if _exact(case) else _against_each_other(case))
    return checks


def _of_network(case: CaseEvidence) -> list[Check]:
    """What a lab's links carried; of machines of their own, how far their clocks can be compared."""
    clocks = case.network.clocks
    if clocks is None:
        return [fidelity.traffic_check(case.traffic, lossless=case.network.lossless)]
    median_s = float(np.median([row.makespan_s for row in case.measured]))
    return [fidelity.not_taken(TRAFFIC), fidelity.clock_check(clocks, median_s)]


def _exact(case: CaseEvidence) -> bool:
    """Whether every iteration should take what is predicted, to microseconds."""
    return case.modelled and case.paced and not case.real


def _low_high_s(case: CaseEvidence) -> tuple[float, float]:
    return case.range_s or (case.predicted_s, case.predicted_s)


def _low_high_each_s(case: CaseEvidence) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per measured iteration, between what it should lie: the range, moved to its own prediction."""
    moved_s = np.zeros(len(case.measured))
    if len(case.own_predicted_s):
        moved_s = np.asarray(case.own_predicted_s) - case.predicted_s
    low_s, high_s = _low_high_s(case)
    return low_s + moved_s, high_s + moved_s


def _spread(case: CaseEvidence) -> Limit:
    """How far the middle half of the iteration times may lie apart."""
    if not _exact(case) or case.drifts:
        return SPREAD
    low_s, high_s = _low_high_s(case)
    return SPREAD_VIRTUAL._replace(value=SPREAD_VIRTUAL.value + (high_s - low_s) / low_s)


def _against_model(case: CaseEvidence) -> Check:
    """Iterations and messages on the virtual clock, where a correct run takes what the model says."""
    times_s = np.array([row.makespan_s for row in case.measured])
    shares = np.array([changes.off_range(*each) for each in zip(times_s, *_low_high_each_s(case), strict=True)])
    off, far, typical = float(np.median(shares)), np.abs(shares) > MODEL_SHARE.value, "median"
    if case.free:
        off, typical = changes.off_range(float(times_s.mean()), *_low_high_s(case)), "mean"
        far &= not case.drifts
    found = changes.find([row.iteration for row in case.measured], times_s, _exact_parts(case), far)
    reasons, notes, limit = list[str](), [found.named] if found.named else [], MODEL_SHARE.per_cent
    if abs(off) > MODEL_SHARE.value:
        notes = []
        what = "prediction" if case.range_s is None else "predicted range, whichever message came first"
        beyond, known = f"{off:+.2%} off its {what}", _left_out_in(case.network)
        reasons.append(f"the {typical} iteration is {beyond}, and {known} (limit {limit}); {found.named}")
    return Check("iterations against the model", f"{off:+.3%}", limit, MODEL_SHARE.why, tuple(reasons), tuple(notes))


def _left_out_in(network: fidelity.NetworkEvidence) -> str:
    """What the model has not, as far as counters tell."""
    if network.full_queues:
        return "a queue was full"
    if network.full_before:
        return f"while ranks connected {fidelity.full_said(network.full_before)}, which leaves TCP narrower windows"
    return "the model has all that the plan asks for"


def _shifted(
    case: CaseEvidence,
) -> tuple[Sequence[FlowMessages], Sequence[float], Sequence[float], Sequence[float]] | None:
    """What `fidelity.shifts_of` tells by; None where it is not known what messages should take."""
    if case.baseline_extra_s is None:
        return None
    return case.flows, case.baseline_extra_s, case.baseline_differs_s, case.super_packets_s


def _limits_s(case: CaseEvidence) -> list[float]:
    """Per flow, how much its messages may take other than before the run."""
    known = _shifted(case)
    shifts = [] if known is None else fidelity.shifts_of(*known, real=case.real)
    limit_of = {one.flow[:3]: one.limit_s for one in shifts}
    return [limit_of.get(flow[:3], MESSAGE_SHIFT_S.value) for flow in case.flows]


def _seldom(case: CaseEvidence) -> list[bool]:
    """Per flow, whether its messages were beyond their limit in some iterations, and in half of all at most.

    Of a message that lay ready no arrival is known, so that in some plans only those are known that came late. Only
    where the median iteration is held against the model can others be left to that: [] elsewhere.
    """
    if not _exact(case) or case.baseline_extra_s is None or not case.quartiles_s:
        return []
    count, found = len(case.measured), []
    for limit_s, baseline_s, each in zip(_limits_s(case), case.baseline_extra_s, case.quartiles_s, strict=True):
        far = int((np.nan_to_num(np.abs(each[0] - baseline_s)) > limit_s).sum())
        found.append(far > 0 and 2 * far <= count)
    return found


def _exact_parts(case: CaseEvidence) -> list[FlowParts]:
    """What messages took beyond the model in each iteration, the furthest quartile; [] where they are not held
    against it."""
    if case.baseline_extra_s is None:
        return []
    packets_s = case.super_packets_s or [0.0] * len(case.flows)
    furthest = [np.take_along_axis(each, np.abs(each).argmax(0)[None], 0)[0] for each in case.quartiles_s]
    limits_s = [CHANGE_SHIFT_VIRTUAL_S + ORDER_PACKETS * packet_s for packet_s in packets_s]
    return _parts(case, furthest, limits_s)


def _against_each_other(case: CaseEvidence) -> Check:
    """Iterations whose messages took other than before the run, or that took other than the first ones."""
    loses, jitters = not case.network.lossless, case.network.jitters
    limit = CHANGE_SHARE if case.real or jitters or loses else MODEL_SHARE  # by chance each takes another time
    times_s = case.comparable_s
    calm = ~disturbed(case.measured, case.baseline) if case.real else None
    far = changes.since_the_beginning(times_s, limit.value, calm, by_chance=loses or jitters)
    numbers, parts = [row.iteration for row in case.measured], _baseline_parts(case)
    found = changes.find(numbers, times_s, parts, far, loses=loses)
    off = changes.off_share(times_s, found.iterations)
    # of those that are held against something from outside the run
    known = changes.find(
        numbers, times_s, parts if case.baseline_extra_s is not None else _unexplained_parts(case), far
    )
    untrusted = 2 * known.by_messages.sum() > len(times_s) or not abs(off) <= limit.value
    # what was asked to come and go is not worth a word
    noted = found.named and not untrusted and (not loses or known.by_messages.any())
    return Check(
        "the median, of unchanged iterations",
        "-" if np.isnan(off) else f"{off:+.2%}",
        limit.per_cent,
        limit.why,
        (changes.reason(off, limit, found, loses=loses),) if untrusted else (),
        (found.named,) if noted else (),
    )


def _baseline_parts(case: CaseEvidence) -> list[FlowParts]:
    """By how much messages in each iteration shifted: what the model does not explain; else their first quartiles,
    since before the run where it was measured then, or since the first iterations."""
    lower = [each[0] for each in case.quartiles_s]
    if case.baseline_extra_s is not None:
        pairs = zip(lower, case.baseline_extra_s, strict=True)
        return _parts(case, [changes.smoothed(each - baseline) for each, baseline in pairs], _limits_s(case))
    shifts = [changes.smoothed(changes.from_first(each)) for each in lower]
    scatter_s = [changes.scatter(each) for each in shifts]
    if not case.network.lossless:  # what is lost comes late by chance, by far more than what is not scatters
        certain = changes.more_than_chance(lower, MESSAGE_SHIFT_S.value)
        shifts = [shift if sure else np.full_like(shift, np.nan) for shift, sure in zip(shifts, certain, strict=True)]
        # a change of half of all iterations is no scatter of what chance does not explain
        scatter_s = [min(each, changes.neighbours_scatter(one)) for each, one in zip(scatter_s, lower, strict=True)]
    limits_s = [max(MESSAGE_SHIFT_S.value, CHANGE_CERTAIN * each) for each in scatter_s]
    since_first, unexplained = _parts(case, shifts, limits_s), _unexplained_parts(case)
    if not unexplained:
        return since_first
    # of messages that losses touch the first iterations tell less than the model
    held = [jitter_s is not None and not case.network.lossless for jitter_s in case.jitter_s]
    each = zip(unexplained, since_first, held, strict=True)
    return [one if by_model or one.changed.any() else other for one, other, by_model in each]


def _unexplained_parts(case: CaseEvidence) -> list[FlowParts]:
    """By how much messages took other than the model says, beyond what losses, jitter and gloo's own all-reduce
    explain; [] where other things are left out of it."""
    if not case.jitter_s:
        return []
    packets_s = case.super_packets_s or [0.0] * len(case.flows)
    each = zip(case.jitter_s, case.losses_touch, packets_s, strict=True)
    # what is late or lost meets others on links at other times than predicted
    chances = [FlowChance(jitter_s, touched, 2 * ORDER_PACKETS * packet_s) for jitter_s, touched, packet_s in each]
    shifts = [chance.shift_s(known) for chance, known in zip(chances, case.known_times, strict=True)]
    return _parts(case, shifts, [chance.limit_s for chance in chances])


def _parts(case: CaseEvidence, shifts: Sequence[NDArray[np.float64]], limits_s: Sequence[float]) -> list[FlowParts]:
    routes = case.routes or [()] * len(case.flows)
    return [
        FlowParts(flow.source_rank, flow.target_rank, flow.kind, tuple(route), shift_s, limit_s)
        for flow, route, shift_s, limit_s in zip(case.flows, routes, shifts, limits_s, strict=True)
    ]


def _given(case: CaseEvidence) -> list[Check]:
    """What was settled before the first case."""
    links = fidelity.given_check(LINKS, case.link_reasons, "all that follows depends on them")
    checks = [links if case.network.clocks is None else fidelity.not_taken(LINKS)]
    if case.profiling is not None:
        why = "a rank that shares a core takes as long as the others let it"
        checks.append(fidelity.given_check("a core for every rank", case.profiling.pinning_reasons, why))
        checks.append(fidelity.profile_check(case.profiling.spread))
    return checks
