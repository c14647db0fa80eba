"""All that the verdict on a case rests on, and the verdict: the same whether a run just ended or its files are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from testbed.judge import fidelity, numerics, order, parameters
from testbed.judge.fidelity import Check, NetworkEvidence, Traffic
from testbed.judge.iterations import IterationRow
from testbed.judge.messages import FlowMessages
from testbed.train.job import Fingerprint, Reference, last_compared


class Profiling(NamedTuple):
    """Of an unpaced job: how it was profiled."""

    pinning_reasons: Sequence[str]
    """Why what ranks take cannot be trusted."""
    spread: float


class Evidence(NamedTuple):
    """What was found out about one case."""

    paced: bool
    real: bool
    """Whether it ran on a real clock."""
    link_reasons: Sequence[str]
    """Of the links that are not as asked."""
    profiling: Profiling | None
    rows: Sequence[IterationRow]
    """All iterations, warm-up included."""
    usual: Sequence[IterationRow]
    """Iterations of the same job, measured before: what this machine always takes. Empty where nothing was."""
    network: NetworkEvidence
    traffic: Sequence[Traffic]
    reference: Reference
    predicted_s: float
    on_this_host_s: float | None
    """Predicted with what this machine adds; None where that was not measured."""
    alike_replicas: Sequence[int]
    """Per replica (and tensor rank), the first one on links like its own: their messages are compared in the order of
    leaving."""
    flows: Sequence[FlowMessages]
    overtaken_s: float
    """What replicas' messages that were to come one after the other have changed places by, in the usual iteration."""
    usual_extra_s: Sequence[float] | None
    """Per flow, the first quartile of its messages' extra time before the case; 0 where the machine adds nothing. None
    where it is not known what messages should take."""
    usual_differs_s: Sequence[float] = ()
    """Per flow, by how much this quartile differs by chance from that of the case (ExtraTimes.differs_s); empty where
    the machine adds nothing."""
    super_packets_s: Sequence[float] = ()
    """Per flow, what one super-packet takes on the slowest link of its route; empty on the virtual clock, which has
    them in their places."""
    fingerprints: Sequence[Fingerprint] = ()
    """Of gradients and weights in the first and in the last compared iteration, all ranks together."""
    range_s: tuple[float, float] | None = None
    """Between what the prediction lies by who comes first; None where nothing hangs on that."""

    @property
    def measured(self) -> list[IterationRow]:
        """The iterations that count."""
        return [row for row in self.rows if not row.warmup]


def judge(case: Evidence) -> list[Check]:
    """Every question of the verdict; a case is trusted when all are passed."""
    rows, host_s = case.measured, case.on_this_host_s
    checks = [
        *_given(case),
        *fidelity.run_checks(rows, paced=case.paced),
        fidelity.network_check(case.network),
        fidelity.traffic_check(case.traffic, lossless=case.network.lossless),
        numerics.loss_check([row.loss for row in case.rows], case.reference),
        numerics.gradient_check(case.rows, case.reference),
        *parameters.parameter_checks(case.fingerprints, case.reference, last_compared(len(case.rows))),
    ]
    if case.real:
        checks += [numerics.count_check(len(rows)), fidelity.disturbance_check(rows, case.usual)]
        checks.append(fidelity.order_check(case.overtaken_s, case.predicted_s))
    if case.profiling is not None:
        checks.append(fidelity.core_check(rows, case.usual))
    if host_s is not None:
        checks.append(fidelity.host_check(case.predicted_s, host_s))
    if case.usual_extra_s is not None:
        checks.append(
            fidelity.message_check(case.flows, case.usual_extra_s, case.usual_differs_s, case.super_packets_s)
        )
    return [*checks, *_in_range(case)]


def _in_range(case: Evidence) -> list[Check]:
    """On the virtual clock, where a prediction is a range and the model has all that the plan asks for."""
    if case.real or case.range_s is None or case.range_s[0] == case.range_s[1]:
        return []
    median_s = float(np.median([row.makespan_s for row in case.measured]))
    return [order.range_check(median_s, *case.range_s)]


def _given(case: Evidence) -> list[Check]:
    """What was settled before the first case."""
    checks = [fidelity.given_check("links as asked", case.link_reasons, "all that follows depends on them")]
    if case.profiling is not None:
        why = "a rank that shares a core takes as long as the others let it"
        checks.append(fidelity.given_check("a core for every rank", case.profiling.pinning_reasons, why))
        checks.append(fidelity.profile_check(case.profiling.spread))
    return checks
