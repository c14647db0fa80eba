"""What a job does with its time when workers fail: by hand, against Daly's formula, and as the command line has it."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from in_process import run_testbed

from testbed.errors import BadInput
from testbed.goodput.intervals import daly_interval_s, expected_goodput, young_interval_s
from testbed.goodput.recovering_plan import Chaos, read_chaos, read_checkpoints, read_failure, spans_of_case
from testbed.goodput.spans import ON_DISK, Span, Spending, foretold, shares_of
from testbed.judge.fidelity import SlotsEvidence, slots_check
from testbed.plan.recovery import Checkpoints, Failure, Recovery, drawn_failures
from testbed.planning import file
from testbed.session.neighbour_memory import NeighbourMemory
from testbed.thresholds import Limit

TRAIN, SAVE, RESTART = Spending


def spans(recovery: Recovery, iterations: int, iteration_s: float = 1.0) -> list[tuple[Spending, int, float, float]]:
    return [span[:4] for span in foretold(lambda number: iteration_s, iterations, recovery)]


def failing(*at_s: float, every: int = 2, save_s: float = 0.5, restart_s: float = 3.0) -> Recovery:
    return Recovery(Checkpoints(every, save_s, restart_s), tuple(Failure(0, at) for at in at_s))


def test_without_a_failure_it_trains_and_saves_but_not_behind_the_last_iteration() -> None:
    assert spans(failing(), 4) == [
        (TRAIN, 0, 0, 1),
        (TRAIN, 1, 1, 2),
        (SAVE, 2, 2, 2.5),
        (TRAIN, 2, 2.5, 3.5),
        (TRAIN, 3, 3.5, 4.5),
    ]


def test_a_failure_costs_what_is_since_the_last_checkpoint() -> None:
    found = spans(failing(4.0), 4)
    assert found[3:] == [
        (TRAIN, 2, 2.5, 3.5),
        (TRAIN, 3, 3.5, 4.0),
        (RESTART, 2, 4.0, 7.0),
        (TRAIN, 2, 7, 8),
        (TRAIN, 3, 8, 9),
    ]
    shares = shares_of(foretold(lambda number: 1.0, 4, failing(4.0)))
    assert shares == (4.0, 1.5, 0.5, 3.0, 0.0)
    assert shares.goodput == 4 / 9


def test_what_is_being_saved_is_lost_and_a_restart_begins_anew() -> None:
    assert spans(failing(2.25, 4.0), 2 + 1)[2:] == [
        (SAVE, 2, 2, 2.25),
        (RESTART, 0, 2.25, 4.0),
        (RESTART, 0, 4.0, 7.0),
        (TRAIN, 0, 7, 8),
        (TRAIN, 1, 8, 9),
        (SAVE, 2, 9, 9.5),
        (TRAIN, 2, 9.5, 10.5),
    ]


def test_a_failure_at_the_end_of_a_span_is_one_in_the_next() -> None:
    assert spans(failing(1.0), 2)[1] == (TRAIN, 1, 1.0, 1.0)
    assert spans(failing(2.0), 2) == [(TRAIN, 0, 0, 1), (TRAIN, 1, 1, 2)], "over by then"


@pytest.mark.parametrize("number", range(200))
def test_all_time_is_one_of_four_and_every_iteration_is_kept_once(number: int) -> None:
    draw = random.Random(f"goodput/{number}")
    iterations, times = draw.randrange(1, 40), [draw.uniform(0.1, 2) for _ in range(40)]
    checkpoints = Checkpoints(draw.randrange(1, 12), draw.uniform(0, 1), draw.uniform(0, 5))
    failures = sorted((Failure(0, draw.uniform(0, 90)) for _ in range(draw.randrange(12))), key=lambda one: one.at_s)
    found = foretold(times.__getitem__, iterations, Recovery(checkpoints, tuple(failures)))
    assert [span.begin_s for span in found[1:]] == [span.end_s for span in found[:-1]]
    shares = shares_of(found)
    assert shares.kept_s == pytest.approx(sum(times[:iterations]))
    assert shares.total_s == pytest.approx(found[-1].end_s)
    assert [span.failure for span in found if span.failure] == [
        failure for failure in failures if failure.at_s < found[-1].end_s
    ]


def mean_goodput(checkpoints: Checkpoints, mtbf_s: float, iteration_s: float, seeds: range) -> float:
    kept_s = total_s = 0.0
    for seed in seeds:
        failures = tuple(drawn_failures(mtbf_s, 50_000, 4, seed))
        shares = shares_of(foretold(lambda number: iteration_s, 2000, Recovery(checkpoints, failures)))
        kept_s, total_s = kept_s + shares.kept_s, total_s + shares.total_s
    return kept_s / total_s


@pytest.mark.parametrize(
    ("every", "mtbf_s", "save_s", "restart_s"), [(5, 60, 0.2, 2), (20, 60, 0.2, 2), (9, 200, 3, 20)]
)
def test_many_trainings_have_the_goodput_of_dalys_formula(
    every: int, mtbf_s: float, save_s: float, restart_s: float
) -> None:
    got = mean_goodput(Checkpoints(every, save_s, restart_s), mtbf_s, 0.5, range(50))
    assert got == pytest.approx(expected_goodput(every * 0.5, save_s, restart_s, mtbf_s), rel=0.01)


def test_dalys_interval_is_the_best_of_the_formula_and_youngs_is_near() -> None:
    best_s = daly_interval_s(0.2, 60)
    assert best_s == pytest.approx(young_interval_s(0.2, 60), rel=0.05)
    around = [expected_goodput(best_s * share, 0.2, 2, 60) for share in (0.8, 0.95, 1.0, 1.05, 1.25)]
    assert max(around) == pytest.approx(around[2], rel=1e-5)
    assert daly_interval_s(10, 4) == 4, "to save takes longer than two failures are apart"


def test_draws_are_of_the_seed_and_of_all_ranks() -> None:
    drawn = list(drawn_failures(10, 10_000, 3, seed=5))
    assert drawn == list(drawn_failures(10, 10_000, 3, seed=5)) != list(drawn_failures(10, 10_000, 3, seed=6))
    assert {failure.rank for failure in drawn} == {0, 1, 2}
    assert len(drawn) == pytest.approx(1000, rel=0.1)


def test_options_are_read() -> None:
    assert read_checkpoints("every=5,save=200 ms,restart=8 s") == Checkpoints(5, 0.2, 8)
    assert read_checkpoints("save=0.2 s") == Checkpoints(10, 0.2, 2)
    assert read_chaos("mtbf=60 s") == Chaos(60, 1, "ranks", None)
    assert read_chaos("seed=3, mtbf=60s,of=nodes") == Chaos(60, 3, "nodes", None)
    assert read_chaos("mtbf=60s,of=cuts") == Chaos(60, 1, "cuts", 2)
    assert read_chaos("for=300 ms,mtbf=60s,of=cuts") == Chaos(60, 1, "cuts", 0.3)
    assert read_failure("rank 2  at 3.2 s") == Failure(2, 3.2)


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--checkpoint", "", "--checkpoint: option: got ''"),
        ("--elastic", "", "--elastic: option: got ''"),
        ("--chaos", "", "--chaos: option: got ''"),
        ("--checkpoint", "every=0", "--checkpoint: every: got '0', expected 1 iteration or more"),
        ("--checkpoint", "every=5,every=6", "each once at most"),
        ("--checkpoint", "save=-1 s", "--checkpoint: save"),
        ("--checkpoint", "save=2", "a time with a unit"),
        ("--checkpoint", "restart=2 h", "a time with a unit"),
        ("--chaos", "seed=3", "--chaos: mtbf"),
        ("--chaos", "mtbf=0", "a time from 0.001"),
        ("--chaos", "mtbf=1 ms", "fewer than 1000 failures"),
        ("--failure", "2 at 3 s", "rank 2, node oslo/1, datacenter oslo at 3.2 s"),
        ("--failure", "node paris at 3 s", "--failure: node: got 'paris', expected a node such as oslo/1"),
        ("--failure", "datacenter paris/0 at 3 s", "a datacenter's name"),
        ("--failure", "node paris/7 at 3 s", "where the job has ranks: paris/0"),
        ("--failure", "datacenter rome at 3 s", "where the job has ranks"),
        ("--failure", "datacenter rome cut off at 3 s for 1 s", "where the job has ranks"),
        ("--failure", "datacenter paris cut off at 3 s for 0", "--failure: for"),
        ("--failure", "node paris/0 cut off at 3 s for 1 s", "--failure: option"),
        ("--checkpoint", "notice=31 s", "--checkpoint: notice: got '31 s', expected a time from 0 to 30 s"),
        ("--checkpoint", "notice=1 s", "--checkpoint: notice: got '1 s', expected --failure 'datacenter NAME cut off"),
        ("--chaos", "mtbf=60 s,of=links", "--chaos: of: got 'links', expected ranks, nodes, datacenters"),
        ("--chaos", "mtbf=60 s,of=nodes,for=2 s", "--chaos: for: got '2 s', expected of=cuts beside it"),
        ("--chaos", "mtbf=60 s,of=cuts,for=0", "--chaos: for"),
        ("--checkpoint", "to=cloud", "--checkpoint: to: got 'cloud', expected disk, or neighbour"),
        ("--checkpoint", "disk=20", "to=neighbour beside it"),
        ("--checkpoint", "to=neighbour,disk-save=1 s", "disk=20 beside it"),
        ("--checkpoint", "every=5,to=neighbour,disk=12", "a multiple of every=5"),
        ("--checkpoint", "to=neighbour,state=1 kB", "got 'state=1000 B', expected"),
        ("--checkpoint", "to=neighbour,state=2 s", "--checkpoint: state"),
        ("--failure", "rank 9 at 3 s", "a rank below 4"),
        ("--failure", "rank 2 at 900 s", "--failure: option: got 'rank 2 at 900 s', expected a time before "),
        ("--failure", "rank 2 at iteration 3", "a time with a unit"),
    ],
)
def test_what_cannot_be_is_one_clear_error(tmp_path: Path, option: str, text: str, said: str) -> None:
    words = ("two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", option, text, "-o", tmp_path / "plan.json")
    done = run_testbed("plan", *words)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "plan.json").exists()


def test_a_failure_that_cannot_be_is_not_blamed_on_how_the_job_saves(tmp_path: Path) -> None:
    words = ("two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--checkpoint", "every=2")
    done = run_testbed("plan", *words, "--failure", "rank 9 at 3 s", "-o", tmp_path / "plan.json")
    assert done.returncode == 2
    assert "--failure: option: got 9, expected a rank below 4" in done.stderr


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (("--swap", "zb-h1@3"), "no events and no controller"),
        (("--adapt", "ski-rental"), "no events and no controller"),
        (("--event", "link paris--warsaw rate 5 % at 2"), "got 'link paris--warsaw rate 5 % at 2', expected no events"),
        (("--set", "pacing=none"), "seconds for F, I and W"),
    ],
)
def test_failures_are_not_beside_what_else_changes(tmp_path: Path, beside: tuple[str, ...], said: str) -> None:
    schedules = ("--schedule", "1f1b", "--schedule", "zb-h1")
    words = ("two-dc-longhaul", "tiny-gpt-pp4", *schedules, "--failure", "rank 1 at 3 s", *beside)
    done = run_testbed("plan", *words, "-o", tmp_path / "plan.json")
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--failure", "rank 1 at 3 s"),
        ("--chaos", "mtbf=6s,seed=3"),
        ("--checkpoint", "every=2"),
        ("--elastic", "repair=1 s"),
    ],
)
def test_failures_are_not_beside_background_traffic(tmp_path: Path, option: str, text: str) -> None:
    (tmp_path / "traffic.csv").write_text("from,to,rate\nparis,warsaw,100 Mbit/s\n")
    words = ("two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--background", tmp_path / "traffic.csv")
    done = run_testbed("plan", *words, option, text, "-o", tmp_path / "plan.json")
    assert done.returncode == 2, done.stderr
    assert "got 'background traffic', expected none beside failures" in " ".join(done.stderr.split())
    assert not (tmp_path / "plan.json").exists()


def test_ports_are_not_chosen_for_workers_that_are_replaced(tmp_path: Path) -> None:
    clos = {"leaves": 4, "spines": 2, "hosts": 1, "rate": "1 Gbit/s", "delay": "10 us"}
    (tmp_path / "clos.yaml").write_text(json.dumps({"name": "clos", "datacenters": {"pod": {"clos": clos}}}))
    words = (tmp_path / "clos.yaml", "tiny-gpt-pp4", "--schedule", "1f1b", "--enforce", "ports")
    done = run_testbed("plan", *words, "--failure", "rank 1 at 3 s", "-o", tmp_path / "plan.json")
    assert done.returncode == 2, done.stderr
    assert "got '--enforce ports', expected other enforcement beside failures" in " ".join(done.stderr.split())


def test_a_plan_keeps_the_failures_that_come_while_it_is_trained(tmp_path: Path) -> None:
    words = ("two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--schedule", "zb-h1", "--iterations", "12")
    drawn = ("--chaos", "mtbf=6s,seed=3", "--checkpoint", "every=2,save=150ms", "--failure", "rank 3 at 1 s")
    done = run_testbed("plan", *words, *drawn, "-o", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    plan = file.read(tmp_path / "plan.json")
    assert plan.recovery is not None
    assert Failure(3, 1.0) in plan.recovery.failures
    ends_s = [spans_of_case(plan, case)[-1].end_s for case in plan.cases]
    assert plan.recovery.failures[-1].at_s < max(ends_s)
    assert file.from_json(file.to_json(plan), "again") == plan
    without = file.to_json(replace(plan, recovery=None))
    assert "recovery" not in json.loads(without), "plans of before stay as they were, to the last byte"
    with pytest.raises(BadInput, match="recovery"):
        file.from_json(file.to_json(plan).replace('"rank": 3', '"rank": 4'), "damaged")


def test_goodput_whose_slots_were_too_short_is_untrusted() -> None:
    """What is foretold has the slots: of a tenth more nobody may say that it was measured as foretold."""
    limit = Limit(0.01, "")
    in_time = slots_check(SlotsEvidence([0.0, 0.0], [1e-6], 10.0), limit)
    assert (in_time.ok, in_time.notes) == (True, ())
    little = slots_check(SlotsEvidence([0.0, 0.09], [], 10.0), limit)
    assert little.ok
    (note,) = little.notes
    assert note == "1 restart was 90 ms longer than the slot, in which workers connect: restart= is too short"
    (reason,) = slots_check(SlotsEvidence([0.437, 0.0, 0.4], [0.01], 10.0), limit).reasons
    assert reason.startswith("2 restarts were up to 437 ms longer than the slot, in which workers connect: restart= ")
    assert reason.endswith("too short; the training took 8.5% longer (limit 1.00%), so goodput is off")
    (reason,) = slots_check(SlotsEvidence([], [0.1, 0.2], 10.0), limit).reasons
    assert reason.startswith("2 saves were up to 200 ms longer than the slot, in which states are written: save= is ")


def test_spans_have_their_length() -> None:
    assert Span(TRAIN, 0, 1.0, 2.5).seconds == 1.5


def test_a_restart_is_late_by_when_what_it_sends_begins(tmp_path: Path) -> None:
    """Workers that connect within the slot may still be too late for what is announced a margin ahead."""
    words = ("two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--failure", "rank 1 at 1.5 s")
    done = run_testbed("plan", *words, "--checkpoint", "every=1,to=neighbour", "-o", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    plan = file.read(tmp_path / "plan.json")
    between = SimpleNamespace(
        margin_s=5.0,
        post=lambda *_: (),
        told=lambda _messages, _version, start_s: start_s,
        exchange=lambda start_s, _expected_s: start_s + 1.0,
        counted=lambda *_: None,
    )
    with NeighbourMemory(plan, plan.cases[0], ON_DISK, *[cast(Any, None)] * 3) as memory:
        memory._between = cast(Any, between)
        memory._keeping = ON_DISK._replace(send_again_s=lambda _: 1.0)
        at_s = time.monotonic() + 3.0
        came_s = memory.restore(at_s, frozenset({1}))
        assert memory.late_s == pytest.approx(2.0, abs=0.5)
        assert came_s == pytest.approx(at_s + memory.late_s + 1.0)
        memory.restore(time.monotonic() + 60.0, frozenset({1}))
        assert memory.late_s == 0.0
