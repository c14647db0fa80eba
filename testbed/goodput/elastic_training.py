"""What the model says of a training that goes on with fewer replicas: of each iteration, with those that take part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from testbed.goodput.elastic_spans import ElasticTimes, foretold_elastic, sets_of_rounds
from testbed.goodput.spans import Span
from testbed.goodput.state_times import exchange_s
from testbed.grouping import grouped
from testbed.plan.events import trained
from testbed.plan.moved_weights import shared
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.recovery import Failure
from testbed.plan.shard_copies import Replicas, Sharing, copies, cut_anew
from testbed.plan.state_exchange import StateMessage, failed_ranks, joining, whole_state_bytes
from testbed.planning.drawn_iterations import phase_of
from testbed.planning.fewer_replicas import ranks_of, with_replicas
from testbed.planning.prediction import parts_of, predict_training, ranges_of_case
from testbed.planning.ties import Range, ranges_of_orders
from testbed.planning.training_prediction import TrainingPrediction, as_round
from testbed.trace.predictions import predicted_numbers, predicted_times_s, prediction_of
from testbed.trace.renumbered import numbered_as
from testbed.trace.tables import Trace, concatenate


class ElasticTraining(NamedTuple):
    """Of the only job of a plan in a case, whose replicas may be lost."""

    spans: Sequence[Span]
    sets: Sequence[Replicas]
    """Of every iteration of the finished training, the replicas that took part."""
    prediction: TrainingPrediction
    """Of these iterations, where they differ from those before them; ranks have their numbers of the whole job in the
    trace, and count anew in loads."""


class _OfSet(NamedTuple):
    """All iterations with one set of replicas."""

    training: TrainingPrediction
    trace: Trace
    """Ranks count from 0."""


def lost_replicas(job: Job, failure: Failure) -> frozenset[int]:
    """Those that a failure takes: each that has a rank there."""
    first = job.mesh.first_rank
    return frozenset(job.mesh.coordinates(first + rank).replica for rank in failed_ranks(job, failure))


def iterations_of_ranks(job: Job, sets: Sequence[Replicas]) -> dict[int, list[int]]:
    """By rank that ever has a part in a training with these replicas in its iterations, in which it has."""
    pairs = [(job.mesh.first_rank + rank, number) for number, those in enumerate(sets) for rank in ranks_of(job, those)]
    return grouped(pairs)


def joining_messages(plan: Plan, case: Case, there: Replicas, new: Replicas) -> tuple[StateMessage, ...]:
    """What is sent where these of the replicas that are there have no state yet; ranks count anew among those there."""
    (job,) = with_replicas(plan, case, there)[0].jobs
    return joining(job.mesh, whole_state_bytes(job, case), [there.index(replica) for replica in new])


def copy_messages(plan: Plan, case: Case, there: Replicas) -> tuple[StateMessage, ...]:
    """What these replicas send each other so that each shard of their optimizer is in two memories."""
    return copies(with_replicas(plan, case, there)[0].jobs[0], case.jobs[0].stage_to_rank)


def cut_anew_messages(
    plan: Plan, case: Case, there: Replicas, new: Replicas, kept_by: Replicas
) -> tuple[StateMessage, ...]:
    """What goes from whom to whom where these replicas go on with the optimizer that others shared; the second of them
    have nothing yet. Ranks count anew among those there."""
    before, after = (Sharing(with_replicas(plan, case, those)[0].jobs[0], those) for those in (kept_by, there))
    left = [replica for replica in there if replica not in new]
    return cut_anew(case.jobs[0].stage_to_rank, before, after, left)


def elastic_training(plan: Plan, case: Case) -> ElasticTraining:
    """All spans and iterations of a case of a plan with `recovery.elastic`, behind whose failures replicas are left.

    Raises as `predict_training`.
    """
    of_set = _predictions(plan, case)
    spans = _spans(plan, case, of_set)
    sets = sets_of_rounds(spans)
    each = {replicas: of_set(replicas) for replicas in dict.fromkeys(sets)}
    return ElasticTraining(spans, sets, _put_together(plan.jobs[0], sets, each))


def elastic_spans(plan: Plan, case: Case) -> list[Span]:
    """Its spans alone, also where a failure leaves no replica (`ends_early`)."""
    return _spans(plan, case, _predictions(plan, case))


def _predictions(plan: Plan, case: Case) -> Callable[[Replicas], _OfSet]:
    @cache
    def of_set(replicas: Replicas) -> _OfSet:
        left, alike = with_replicas(plan, case, replicas)
        training = predict_training(left, alike)
        (part,) = parts_of(left, alike, training.trace)
        return _OfSet(training, part)

    return of_set


def _spans(plan: Plan, case: Case, of_set: Callable[[Replicas], _OfSet]) -> list[Span]:
    assert plan.recovery is not None
    assert plan.recovery.elastic is not None
    (job,), rounds = plan.jobs, trained(plan, [case], 0)
    sharing = shared(job.workload)

    @cache
    def times_s(replicas: Replicas) -> list[float]:
        return list(map(float, predicted_times_s(of_set(replicas).trace, rounds)))

    def sent_s(there: Replicas, messages: Sequence[StateMessage]) -> float:
        return exchange_s(*with_replicas(plan, case, there), messages)

    @cache
    def send_s(there: Replicas, new: Replicas, kept_by: Replicas) -> float:
        if not sharing:
            return sent_s(there, joining_messages(plan, case, there, new))
        return sent_s(there, cut_anew_messages(plan, case, there, new, kept_by))

    @cache
    def copy_s(there: Replicas) -> float:
        return sent_s(there, copy_messages(plan, case, there))

    def lost_with(failure: Failure) -> frozenset[int]:
        return lost_replicas(job, failure)

    times = ElasticTimes(lambda replicas, number: times_s(replicas)[number], send_s, copy_s if sharing else None)
    made = len(rounds), job.mesh.dp, plan.recovery.elastic, plan.recovery.failures
    return foretold_elastic(times, *made, lost_with)


def _put_together(job: Job, sets: Sequence[Replicas], each: dict[Replicas, _OfSet]) -> TrainingPrediction:
    """Every iteration as it is predicted with the replicas that take part; one stands for those like it behind it."""
    numbers = {replicas: predicted_numbers(one.trace, range(len(sets))).tolist() for replicas, one in each.items()}
    parts, loads, before = [], {}, None
    for number, replicas in enumerate(sets):
        if before != (before := (replicas, numbers[replicas][number])):
            part = prediction_of(each[replicas].trace, number)
            trace = numbered_as(part, ranks_of(job, replicas), replicas, job.mesh.size)
            parts.append(as_round(trace, number).as_job(0, job.mesh.ranks, job.start_s))
            loads[number] = each[replicas].training.loads_of(number)
    return TrainingPrediction(concatenate(parts), (), loads)


def range_of(plan: Plan, case: Case, training: ElasticTraining) -> Range | None:
    """As `ranges_of_training`, of the only job: as wide as with any of its sets of replicas."""
    (part,) = parts_of(plan, case, training.prediction.trace)
    lows_s, highs_s = list[float](), list[float]()
    for replicas in dict.fromkeys(training.sets):
        number = training.sets.index(replicas)
        (found,) = ranges_of_orders(training.prediction.loads_of(number))
        if found is not None:
            own_s = float(predicted_times_s(part, [number])[0])
            lows_s.append(found.low_s - own_s)
            highs_s.append(found.high_s - own_s)
    if not lows_s:
        return None
    median_s = float(np.median(predicted_times_s(part, phase_of(plan, case).measured)))
    return Range(min(lows_s), max(highs_s)).moved(median_s)


def ranges_as_played(plan: Plan, case: Case) -> list[Range | None]:
    """The same as `ranges_of_case`, of a case's iterations as a session keeps them."""
    if plan.recovery is None or plan.recovery.elastic is None:
        return ranges_of_case(plan, case)
    return [range_of(plan, case, elastic_training(plan, case))]


def training_as_played(plan: Plan, case: Case) -> TrainingPrediction:
    """What is predicted of a case's iterations as a session keeps them, failures included. Raises as
    `predict_training`."""
    if plan.recovery is None or plan.recovery.elastic is None:
        return predict_training(plan, case)
    return elastic_training(plan, case).prediction
