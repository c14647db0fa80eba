"""A case whose job goes on with fewer replicas: what workers are given with each set, what links should carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from testbed.goodput.elastic_spans import continued, sets_of_rounds
from testbed.goodput.elastic_training import ElasticTraining, copy_messages
from testbed.goodput.spans import Span, Spending
from testbed.plan.moved_weights import shared
from testbed.plan.plan import Case, Plan
from testbed.plan.shard_copies import Replicas
from testbed.plan.state_exchange import StateTraffic, state_traffic
from testbed.plan.traffic import PlannedTraffic, planned_traffic
from testbed.planning.fewer_replicas import with_replicas
from testbed.planning.prediction import loads_of_case
from testbed.session.deadlines import Deadline
from testbed.session.elastic_rounds import ElasticJob, ElasticRounds
from testbed.session.loop import Resumed, start_margin_s
from testbed.session.rounds import WitnessedRounds, task_of
from testbed.session.running import Running
from testbed.session.shards_memory import ShardsMemory
from testbed.session.survivors_memory import SurvivorsMemory
from testbed.session.timers import TimedAction


def elastic_rounds(
    running: Running,
    plan: Plan,
    case: Case,
    training: ElasticTraining,
    deadline: Deadline,
    timed: Callable[[int], Sequence[TimedAction]],
) -> ElasticRounds:
    """Its rounds; `timed` as in Loop.run."""
    count, anew = len(training.sets), tuple(continued(training.spans))

    def begin(replicas: Replicas, resumed: Resumed | None, announce: Callable[[int, float], None]) -> WitnessedRounds:
        left, alike = with_replicas(plan, case, replicas)
        (job,), (load,) = left.jobs, loads_of_case(left, alike)
        task, margin_s = task_of(job, load, count, evidence=True, also_compared=anew), start_margin_s(left, alike)
        of_all = running.loop, {0: task}, deadline, running.witness, lambda number: margin_s
        return WitnessedRounds(*of_all, timed, announce, resumed)

    workers = running.workers
    assert workers is not None  # where they cannot be replaced, such a plan is refused
    kind = ShardsMemory if shared(plan.jobs[0].workload) else SurvivorsMemory
    memory = kind(plan, case, running.loop, workers, running.network)
    return ElasticRounds(ElasticJob(plan, case, training.spans, begin, workers, running.network, memory))


def elastic_traffic(plan: Plan, case: Case, spans: Sequence[Span]) -> list[StateTraffic]:
    """Per direction of the network, then per network card, what a training brings: its iterations, each with its
    replicas, and copies of the shards that they keep."""
    sets = Counter(sets_of_rounds(spans))
    each: list[tuple[int, Sequence[PlannedTraffic | StateTraffic]]] = [
        (count, planned_traffic(*with_replicas(plan, case, replicas))) for replicas, count in sets.items()
    ]
    copied = Counter(span.replicas for span in spans if span.what is Spending.SAVE and span.failure is None)
    each += [
        (count, state_traffic(*with_replicas(plan, case, replicas), copy_messages(plan, case, replicas)))
        for replicas, count in copied.items()
    ]
    return [
        StateTraffic(
            sum(count * traffic[place].wire_bytes for count, traffic in each),
            sum(count * traffic[place].messages for count, traffic in each),
        )
        for place in range(len(each[0][1]))
    ]
