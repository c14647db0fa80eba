"""Messages of a job that goes on with fewer replicas against their predictions: of each iteration with its own."""

from __future__ import annotations

import numpy as np

from testbed.goodput.elastic_training import ElasticTraining
from testbed.judge.messages import Likeness, MessageTimes, message_times
from testbed.model.replay import on_the_way_s
from testbed.plan.exchange import sites_of
from testbed.plan.plan import Plan
from testbed.planning.fewer_replicas import job_of, ranks_of
from testbed.trace.renumbered import counted_anew, tables_numbered_as
from testbed.trace.tables import Trace


def elastic_message_times(
    plan: Plan, training: ElasticTraining, measured: Trace, predicted: Trace, *, order_sensitive: bool
) -> MessageTimes:
    """As judge/messages.message_times, set by set of replicas: in each, ranks count from 0."""
    (job,), found = plan.jobs, list[MessageTimes]()
    numbers = set(measured.iterations().tolist())
    for replicas in dict.fromkeys(training.sets):
        mine = sorted(number for number, those in enumerate(training.sets) if those == replicas and number in numbers)
        if not mine:
            continue
        ranks, fewer = ranks_of(job, replicas), job_of(job, replicas)
        trace = counted_anew(measured.without(sorted(numbers.difference(mine))), ranks, replicas)
        others = [number for number in predicted.iterations().tolist() if training.sets[number] != replicas]
        (load,) = training.prediction.loads_of(mine[0])
        loads_of = training.prediction.loads_of
        (due_s,) = on_the_way_s([load], [trace], order_sensitive=order_sensitive, loads_of=loads_of)
        times = message_times(
            trace,
            counted_anew(predicted.without(others), ranks, replicas),
            paced=True,
            ranks=Likeness(load.problem.first_like, load.problem.tensor, sites_of(fewer)),
            on_the_way_s=due_s,
        )
        _, rows = tables_numbered_as(trace.actions, times.rows, ranks, replicas)
        found.append(times._replace(rows=rows))
    return MessageTimes(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
