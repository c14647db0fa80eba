"""Measured against predicted: speed-ups, errors, ranking with ties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testbed.cli.run_tables import ranking_line
from testbed.judge.comparison import MeasuredCase, RankedPairs, compare, ranked_pairs, same_ranking
from testbed.judge.fidelity import Check, NetworkEvidence, network_check, run_checks
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.model.simulate import simulate
from testbed.pipeline.problem import uniform
from testbed.planning.ties import Range
from testbed.schedule.registry import generate
from testbed.thresholds import TIE, UNPACED_TIE
from testbed.trace.summary import summaries


def rows(seconds: float, spread: float = 0.0) -> list[IterationRow]:
    times = [seconds - spread, seconds, seconds + spread]
    return [
        IterationRow(i, False, t, 0.4, 5.0 - i, (4.0, 3.0), (4.0, 3.0), 0, 0.0, 96, 0.0, Witnesses())
        for i, t in enumerate(times)
    ]


def measured(name: str, seconds: float) -> MeasuredCase:
    problem = uniform(4, 8, delay_s=2, cuts=(1,))
    return MeasuredCase(name, name, rows(seconds, 1.0), summaries(simulate(problem, generate(name, problem)))[0], [])


def test_errors_and_speedups() -> None:
    first, second = compare([measured("1f1b", 50.0), measured("zb-h1", 40.0)])
    assert (first.predicted_s, second.predicted_s) == (49, 41)
    assert first.error == pytest.approx(1 / 49)
    assert first.measured_iqr_s == pytest.approx(1.0)
    assert (first.speedup_measured, second.speedup_measured) == (1.0, 1.25)
    assert second.speedup_predicted == pytest.approx(49 / 41)
    assert compare([measured("zb-h1", 40.0)])[0].speedup_measured is None


def test_ranking() -> None:
    first, second = compare([measured("1f1b", 50.0), measured("zb-h1", 40.0)])
    assert same_ranking([first, second])
    assert not same_ranking([replace(first, measured_s=30.0), second])
    # predicted equal: either may be faster
    assert same_ranking([replace(first, measured_s=30.0, predicted_s=second.predicted_s * 1.0005), second])
    # and without pacing, predicted within 5 %
    close = [replace(first, measured_s=30.0, predicted_s=second.predicted_s * 1.04), second]
    assert not same_ranking(close)
    assert same_ranking(close, UNPACED_TIE)


def test_a_prediction_that_is_a_range_is_ranked_by_all_of_it() -> None:
    runs = [replace(measured("1f1b", 39.5), predicted_range=Range(39.0, 49.5)), measured("zb-h1", 40.0)]
    first, second = compare(runs)
    assert (first.predicted_low_s, first.predicted_high_s) == (39.0, 49.5)
    assert (second.predicted_low_s, second.predicted_high_s) == (None, None)
    assert first.predicted_s == 49
    assert same_ranking([first, second])
    assert same_ranking([replace(first, measured_s=45.0), second])
    assert not same_ranking([replace(first, predicted_low_s=None), second])


def test_pairs_that_a_prediction_does_not_rank_are_ties() -> None:
    first, second = compare([measured("1f1b", 50.0), measured("zb-h1", 40.0)])
    wide = replace(first, label="wide", predicted_low_s=40.5, predicted_high_s=49.5)
    assert ranked_pairs([first, second]) == RankedPairs(1, 0, 0)
    assert ranked_pairs([replace(first, measured_s=30.0), second]) == RankedPairs(0, 1, 0)
    assert ranked_pairs([first, second, wide]) == RankedPairs(1, 0, 2)
    assert ranked_pairs([replace(wide, measured_s=9.0), second]) == RankedPairs(0, 0, 1)
    assert ranking_line([first, second], TIE) == "measured ranking: as predicted in the only pair"
    assert ranking_line([first], TIE) == "measured ranking: nothing to rank"
    said = ranking_line([first, second, wide], TIE)
    assert said == "measured ranking: as predicted in 1 of 3 pairs, 2 are ties by the prediction"
    assert "nothing decided" in ranking_line([wide, second], TIE)
    assert "NOT in 1" in ranking_line([replace(first, measured_s=30.0), second], TIE)


def reasons(run: list[IterationRow], network: NetworkEvidence) -> list[str]:
    checks: list[Check] = [
        *run_checks(run, np.array([one.makespan_s for one in run]), paced=True),
        network_check(network),
    ]
    return [reason for check in checks for reason in check.reasons]


CLEAN = NetworkEvidence(drops=0, retransmits=0, other={}, lossless=True)


@pytest.mark.parametrize(
    ("run", "network", "reason"),
    [
        ([r._replace(overruns=2) for r in rows(1.0)], CLEAN, "did not fit into their slots"),
        ([r._replace(late_start_s=0.1) for r in rows(1.0)], CLEAN, "started late in 100%"),
        ([r._replace(held=(5.0, 3.0)) for r in rows(1.0)], CLEAN, "held another number of microbatches"),
        (rows(1.0, 0.3), CLEAN, "spread by 30.0%"),
        (rows(1.0), CLEAN._replace(drops=3), "3 packets were dropped"),
        (rows(1.0), CLEAN._replace(drops=1, full_queues=[("a->b", 1)]), "none; a queue was full: a->b dropped 1"),
        (rows(1.0), CLEAN._replace(retransmits=1), "TCP retransmitted 1"),
        (rows(1.0), CLEAN._replace(other={"TcpExtPruneCalled": 2}), "TcpExtPruneCalled 2"),
    ],
)
def test_what_makes_a_run_untrusted(run: list[IterationRow], network: NetworkEvidence, reason: str) -> None:
    assert reasons(rows(1.0), CLEAN) == []
    (found,) = reasons(run, network)
    assert reason in found


def test_an_experiment_that_asked_for_loss_may_lose() -> None:
    lossy = NetworkEvidence(drops=3, retransmits=9, other={"TcpExtPruneCalled": 1}, lossless=False)
    assert reasons(rows(1.0), lossy) == []


def test_an_action_that_waits_for_what_was_lost_need_not_be_too_long() -> None:
    """Tensor ranks exchange within their actions."""
    long = [one._replace(overruns=2) for one in rows(1.0)]
    for lossless in (True, False):
        (check,) = [
            one for one in run_checks(long, np.ones(3), paced=True, loses=not lossless) if "slots" in one.question
        ]
        assert ("waited for packets that were lost" in check.reasons[0]) is not lossless
