"""A job that adapts, rehearsed in the event model: what it gains of what an oracle gains, and what it leaves alone."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import adaptation

from testbed.adaptation import controller
from testbed.adaptation.adaptable_job import AdaptableJob, adaptable_job, planned_belief
from testbed.adaptation.candidate import JobSetting, Prospect
from testbed.adaptation.controller import Outlook, expected, ski_rental
from testbed.adaptation.recurrence import BelievedPhase
from testbed.adaptation.rehearsal import Rehearsal, rehearse, spans_of_who_sees
from testbed.adaptation.rehearsal_changes import Change, change
from testbed.adaptation.rehearsal_world import AS_PACED, OneJobsWorld, SlotVariation
from testbed.adaptation.sightings import Path as Crossed
from testbed.adaptation.swap_costs import SwapCosts
from testbed.cli import app
from testbed.errors import BadInput
from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.planning.prediction import predict_training
from testbed.planning.resolve import load_plan, make_plan
from testbed.planning.schedules import choose, make, with_selected
from testbed.spec import load_topology, load_workload
from testbed.spec.choice import ScheduleChoice
from testbed.spec.event_text import Becomes
from testbed.spec.topology import with_events
from testbed.trace.predictions import predicted_times_s

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
SCHEDULES = ("1f1b", "zb-h1", "geopipe", "pipemorph", "crosspipe-greedy")
LINK = "paris--warsaw"
AT, AFTER = 5, 40
SWAP_S = 0.02
RING: dict[str, Any] = {
    "name": "ring",
    "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}, "c": {"nodes": 1}},
    "links": [
        {"name": "direct", "between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"},
        {"name": "first", "between": ["a", "c"], "delay": "20 ms", "rate": "1 Gbit/s"},
        {"name": "second", "between": ["c", "b"], "delay": "20 ms", "rate": "1 Gbit/s"},
    ],
}


def job_of(*settings: str, topology: Path | dict[str, Any] = LONGHAUL) -> AdaptableJob:
    plan = load_plan(topology, PP4, settings=["memory=8", *settings])
    return adaptable_job(plan, choose(plan, SCHEDULES))


def crossed(source: str, target: str, direction: int) -> Crossed:
    return Crossed(source, target, (direction,))


def changes_of(job: AdaptableJob, *events: str) -> list[Change]:
    return [change(event, job.plan) for event in events]


def rehearsed(
    job: AdaptableJob, *events: str, iterations: int = AT + AFTER, name: str = "ski-rental", **more: Any
) -> Rehearsal:
    chosen = controller.choose(name)
    return rehearse(job, changes_of(job, *events), iterations, chosen, swap_s=SWAP_S, **more)


@pytest.fixture(scope="module")
def plain() -> AdaptableJob:
    return job_of()


@pytest.fixture(scope="module")
def large() -> AdaptableJob:
    """Messages that fill a link that has lost half of its rate."""
    return job_of("message=2.5 MB")


# --- what stays changed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "events",
    [
        (f"link {LINK} delay x4 at {AT}",),
        (f"rank 1 slower x1.5 at {AT}",),
        (f"link {LINK} delay x4 at {AT}", f"rank 0 slower x1.5 at {AT}"),
    ],
)
def test_nine_tenths_of_an_oracles_gain(plain: AdaptableJob, events: Sequence[str]) -> None:
    found = rehearsed(plain, *events)
    assert found.share is not None
    assert 0.9 <= found.share <= 1.0
    assert found.noticed_after(AT) == 1
    assert len(found.swaps) == 1


def test_the_same_of_half_the_rate(large: AdaptableJob) -> None:
    found = rehearsed(large, f"link {LINK} rate x0.5 at {AT}")
    assert found.share is not None
    assert found.share >= 0.9


def test_a_lost_link_with_a_detour_is_a_longer_path_to_the_job() -> None:
    job = job_of("placement=[a/0, a/1, b/0, b/1]", topology=RING)
    found = rehearsed(job, f"link direct lost at {AT}")
    assert found.share is not None
    assert found.share >= 0.9
    path = found.rows[-1].step.belief.paths[crossed("a", "b", 0)]
    assert path.delay_s.value == pytest.approx(0.04, rel=0.02)


@pytest.mark.parametrize("axis", ["data", "tensor"])
def test_replicas_and_tensor_ranks_adapt_to_a_slower_link(axis: str) -> None:
    job = job_of("parallelism.pipeline=2", f"parallelism.{axis}=2", "microbatches=7")
    found = rehearsed(job, f"link {LINK} delay x4 at {AT}", begin="1f1b")
    assert found.noticed_after(AT) == 1
    assert found.rows[-1].step.belief.paths[crossed("paris", "warsaw", 0)].delay_s.value == pytest.approx(
        0.0408, rel=0.02
    )
    last = found.rows[-1]
    assert last.step.stays_s == pytest.approx(last.adapted_s, rel=0.01)
    assert found.gain_s > 0


def test_a_rank_of_one_replica_is_no_rank_of_a_rehearsal() -> None:
    job = job_of("parallelism={pipeline: 2, data: 2}")
    with pytest.raises(BadInput, match="with replicas"):
        changes_of(job, "rank 1 slower x2 at 5")


def test_a_lost_link_without_a_detour_is_refused(plain: AdaptableJob) -> None:
    with pytest.raises(BadInput, match="a route that is left from paris to warsaw"):
        rehearsed(plain, f"link {LINK} lost at {AT}")


def test_what_is_over_is_noticed_too(plain: AdaptableJob) -> None:
    found = rehearsed(plain, f"link {LINK} delay x4 at {AT} to 25", iterations=50)
    assert [row.iteration for row in found.rows if row.step.learnt.alarms] == [AT, 25]
    last = found.rows[-1].step.belief.paths[crossed("paris", "warsaw", 0)]
    assert last.delay_s.value == pytest.approx(0.0102, rel=0.02)


# --- what comes and goes --------------------------------------------------------------------------


@pytest.mark.parametrize("every", [3, 10, 30])
def test_cross_traffic_makes_nobody_flap_or_lose(large: AdaptableJob, every: int) -> None:
    """A swap for every second turn at most, and never behind a job that stays as it is."""
    found = rehearsed(large, f"link {LINK} traffic 60 % every {every} at {AT}")
    assert len(found.swaps) <= 1 + AFTER // (2 * every) + 1
    assert found.gain_s >= 0


# --- what is steady -------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [AS_PACED, SlotVariation(0.03, 1), SlotVariation(0.03, 2), SlotVariation(0.37, 4)])
def test_nothing_is_swapped_where_nothing_happens(plain: AdaptableJob, slots: SlotVariation) -> None:
    found = rehearsed(plain, iterations=60, drawn=slots)
    assert found.swaps == []
    assert found.gain_s == 0
    assert not any(row.step.learnt.changes for row in found.rows)


def test_slots_that_vary_hide_no_change(plain: AdaptableJob) -> None:
    found = rehearsed(plain, f"link {LINK} delay x4 at {AT}", drawn=SlotVariation(0.03, 1))
    assert found.noticed_after(AT) == 1
    assert found.share is not None
    assert found.share >= 0.9


# --- the three jobs -------------------------------------------------------------------------------


def test_a_controller_that_never_swaps_is_the_job_that_never_adapts(plain: AdaptableJob) -> None:
    found = rehearsed(plain, f"link {LINK} delay x4 at {AT}", name="never")
    assert found.total_s("adapted") == found.total_s("never")
    assert found.most_gain_s > 0


def test_nobody_is_ahead_of_the_oracle(large: AdaptableJob) -> None:
    for every in (3, 10):
        found = rehearsed(large, f"link {LINK} traffic 70 % every {every} at {AT}")
        assert found.total_s("oracle") <= min(found.total_s("adapted"), found.total_s("never")) + 1e-9


@pytest.mark.parametrize(
    ("states", "spans"),
    [
        ([0, 0, 0], [[0, 0, 0]]),
        ([0, 0, 1, 1, 1], [[0, 0, 1], [1, 1]]),
        ([0, 1, 1, 0, 0, 1, 1, 0, 0], [[0, 1], [1, 0], [0], [1, 1], [0, 0]]),
        ([0, 1, 2, 2], [[0, 1, 2], [2]]),
    ],
)
def test_who_has_to_see_a_change_knows_of_it_from_its_first_end_on(states: list[int], spans: list[list[int]]) -> None:
    assert spans_of_who_sees(states) == spans


def test_who_has_to_see_a_change_is_behind_who_knows_and_the_job_hardly_behind_that(large: AdaptableJob) -> None:
    found = rehearsed(large, f"link {LINK} traffic 60 % every 10 at {AT}")
    assert found.total_s("oracle") < found.total_s("late_oracle") <= found.total_s("adapted") + 1e-9
    assert found.late_share is not None
    assert found.late_share >= 0.95


def test_swaps_are_paid_for(plain: AdaptableJob) -> None:
    found = rehearsed(plain, f"link {LINK} delay x4 at {AT}")
    (first,) = found.swaps
    assert found.rows[first].adapted_s - found.rows[first + 1].adapted_s == pytest.approx(SWAP_S)


def test_a_swap_that_costs_more_than_it_brings_is_not_made(plain: AdaptableJob) -> None:
    chosen = controller.choose("ski-rental")
    events = changes_of(plain, f"link {LINK} delay x4 at {AT}")
    found = rehearse(plain, events, AT + AFTER, chosen, swap_s=100.0)
    assert (found.swaps, found.oracle_swaps) == ([], 0)


def test_the_schedule_to_begin_with_can_be_chosen(plain: AdaptableJob) -> None:
    found = rehearsed(plain, iterations=10, begin="1f1b")
    assert found.rows[0].running == "1f1b"
    assert found.swaps == [3]
    with pytest.raises(BadInput, match="a schedule that fits"):
        rehearsed(plain, iterations=10, begin="gpipe")


def test_slots_are_drawn_by_seed_and_the_same_for_every_schedule(plain: AdaptableJob) -> None:
    problem = plain.planned
    one, same, other = (SlotVariation(0.1, seed).slots_s(problem, 3) for seed in (1, 1, 2))
    assert one is not None
    assert same is not None
    assert other is not None
    assert (one == same).all()
    assert (one != other).any()
    assert one.shape == (1, 4, 4, 8)
    assert AS_PACED.slots_s(problem, 3) is None


def test_families_that_search_do_so_quickly_unless_the_workload_says_how_long(plain: AdaptableJob) -> None:
    own = ScheduleChoice.model_validate({"schedule": "search", "label": "own", "evaluations": 7})
    choices = [*choose(plain.plan, ["1f1b", "search"]), own]
    found = {recipe.label: recipe.choice.options() for recipe in adaptable_job(plain.plan, choices).recipes}
    assert found == {"1f1b": {}, "search": {"evaluations": 60}, "own": {"evaluations": 7}}


def test_what_really_happens_is_what_the_event_says(plain: AdaptableJob) -> None:
    world = OneJobsWorld(
        plain, changes_of(plain, f"link {LINK} delay 40 ms at 1 to 2", "rank 2 slower x2 at 1"), AS_PACED
    )
    before, during, after = (world.problem(world.state(iteration), plain.recipes[0].setting) for iteration in (0, 1, 2))
    assert [problem.links[0].delay_s for problem in (before, during, after)] == [0.0102, 0.04, 0.0102]
    assert during.forward_s == (0.02, 0.02, 0.04, 0.02)
    assert world.state(2) == world.state(3) != world.state(1)


# --- the benchmark, in its quick form -------------------------------------------------------------


def test_drawn_timelines_are_those_of_their_seed() -> None:
    one, same, other = (adaptation.drawn(number, 1) for number in (3, 3, 4))
    assert (one.name, one.events, one.subject.recipes) == (same.name, same.events, same.subject.recipes)
    assert one.subject.recipes != other.subject.recipes


def test_the_benchmark_judges_what_stays_changed() -> None:
    every = adaptation.judged([*adaptation.own()[:1], adaptation.drawn(9, 1)])
    claim = adaptation.shares("gain", every, len(every))
    assert claim.passed, claim.got
    assert claim.got.startswith("2 of 2, worst 9")
    assert adaptation.steady(10, 1).passed


# --- the controller by itself ---------------------------------------------------------------------


AS_IT_IS = JobSetting(1, (), (0,))


def prospects(*seconds: float) -> list[Prospect]:
    """With so many microbatches each, so that all have other rows; the fastest first."""
    made = [
        Prospect(
            f"s{n}", AS_IT_IS, (Schedule(f"s{n}", (tuple(Action(0, Kind.F, m) for m in range(n)),), (0,), n),), each
        )
        for n, each in enumerate(seconds, 1)
    ]
    return sorted(made, key=lambda each: each.predicted_s)


def outlook(running: float, *others: float, swap_s: float = 1.0, doubts: bool = False) -> Outlook:
    every = prospects(running, *others)
    mine = next(each for each in every if each.label == "s1")
    times = {each.candidate: each.predicted_s for each in every}
    nothing: Any = None
    return Outlook(0, mine, every, SwapCosts(swap_s), nothing, doubts, running, [BelievedPhase(5, times)])


def asked(*outlooks: Outlook, dwell: int = 1, lasts: int = 0) -> list[str | None]:
    decide = ski_rental(dwell, lasts=lasts)
    return [None if (found := decide(each)) is None else found.label for each in outlooks]


def test_it_swaps_once_as_much_is_lost_as_a_swap_costs() -> None:
    assert asked(*[outlook(2.0, 1.6)] * 3) == [None, None, "s2"]


def test_it_swaps_at_once_where_that_pays_in_the_least_time_that_changes_last() -> None:
    assert asked(outlook(2.0, 1.6), lasts=3) == ["s2"]
    assert asked(*[outlook(2.0, 1.6)] * 2, lasts=2) == [None, None]


def test_what_is_in_doubt_is_counted_once_it_is_known() -> None:
    assert asked(outlook(2.0, 1.6, doubts=True), outlook(2.0, 1.6, doubts=True), outlook(2.0, 1.6)) == [
        None,
        None,
        "s2",
    ]


def test_what_was_lost_is_forgotten_when_the_running_one_is_better_again() -> None:
    assert asked(outlook(2.0, 1.5), outlook(1.0, 2.0), outlook(2.0, 1.5), outlook(2.0, 1.5)) == [None, None, None, "s2"]


def test_it_takes_the_fastest_of_those_that_are_worth_it() -> None:
    assert asked(outlook(5.0, 3.0, 2.0)) == ["s3"]


def test_next_to_nothing_is_no_reason() -> None:
    assert asked(*[outlook(2.0, 1.995, swap_s=0.0)] * 5) == [None] * 5


def test_it_keeps_a_schedule_for_a_while() -> None:
    assert asked(*[outlook(5.0, 1.0)] * 7, dwell=3) == [None, None, "s2", None, None, "s2", None]


def phases_of(*lengths_and_times: tuple[int, tuple[float, float]]) -> Outlook:
    one, other = (each.candidate for each in prospects(1.0, 2.0))
    made = [BelievedPhase(count, {one: a, other: b}) for count, (a, b) in lengths_and_times]
    return outlook(1.0, 2.0)._replace(phases=made)


PLANNED, SLOW = (1.0, 1.2), (3.0, 1.5)


def test_what_has_changed_is_expected_to_stay() -> None:
    assert list(expected(phases_of((5, PLANNED), (2, SLOW))).values()) == [3.0, 1.5]


def test_what_comes_and_goes_quickly_is_expected_as_its_mean() -> None:
    assert list(expected(phases_of((5, PLANNED), (3, SLOW), (2, PLANNED))).values()) == pytest.approx([2.0, 1.35])


def test_what_comes_and_goes_slowly_is_followed() -> None:
    assert list(expected(phases_of((5, PLANNED), (300, SLOW), (2, PLANNED))).values()) == [1.0, 1.2]


def test_what_is_foreseen_waits_for_no_dwell() -> None:
    """Phases as short as the dwell: who waits for it is late at every turn."""
    now = phases_of((9, PLANNED), (3, SLOW), (3, PLANNED), (3, SLOW), (3, PLANNED))._replace(swap_costs=SwapCosts(0.1))
    assert asked(now, dwell=4) == ["s2"]


def test_an_unknown_controller_or_option_is_named() -> None:
    with pytest.raises(BadInput, match="ski-rental"):
        controller.choose("fortune-teller")
    with pytest.raises(BadInput, match="an option of ski-rental"):
        controller.choose("ski-rental,courage=3")
    with pytest.raises(BadInput, match="dwell"):
        controller.choose("ski-rental,dwell=0")
    with pytest.raises(BadInput, match="OPTION=VALUE"):
        controller.choose("ski-rental,dwell")


def test_a_controller_in_a_file(plain: AdaptableJob) -> None:
    found = rehearsed(
        plain, f"link {LINK} delay x4 at {AT}", name=f"{ROOT / 'examples/my_controller.py'}:eager,gain=0.05"
    )
    assert len(found.swaps) == 1
    assert found.gain_s > 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def bad():\n    return lambda outlook: 1 / 0\n", "ZeroDivisionError in line 2"),
        ("def bad():\n    return lambda outlook: 3\n", "one of the outlook's prospects, or None"),
        ("def bad():\n    return 3\n", "a function that returns a function of an Outlook"),
    ],
)
def test_a_controller_in_a_file_that_fails_is_bad_input(
    plain: AdaptableJob, tmp_path: Path, body: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(body)
    with pytest.raises(BadInput, match=said):
        rehearsed(plain, name=f"{tmp_path}/mine.py:bad", iterations=3)


# --- events as text, and the command --------------------------------------------------------------


def test_events_are_read(plain: AdaptableJob) -> None:
    factor, value, share, rank = changes_of(
        plain,
        f"link {LINK} delay x4 at 3",
        f"link {LINK}  rate 200 Mbit/s at 3 to 9",
        f"link {LINK} traffic 60 % every 2 at 4",
        "rank 3 slower x1.25 at 0",
    )
    assert (factor.read.becomes, factor.read.iteration, factor.read.until) == (Becomes(delay_factor=4.0), 3, None)
    assert (value.read.becomes, value.read.until) == (Becomes(rate_bps=2e8), 9)
    assert [share.applies(iteration) for iteration in range(9)] == [0, 0, 0, 0, 1, 1, 0, 0, 1]
    assert (rank.read.rank, rank.read.factor) == (3, 1.25)


ENDS = ["", "", " to {}"]
EVENTS = [
    *(f"link {LINK} delay {value}" for value in ("x4", "x0.5", "x1", "40 ms")),
    *(f"link {LINK} rate {value}" for value in ("x0.5", "100 %", "60 %", "300 Mbit/s")),
    f"link {LINK} paris -> warsaw rate 30 %",
    f"link {LINK} traffic 60 % every 2",
    "rank 1 slower x1.5",
    "rank 1 slower x0.8",
]


@pytest.mark.parametrize("seed", range(12))
def test_events_mean_what_they_do_in_a_run(plain: AdaptableJob, seed: int) -> None:
    """Whichever of those of one link comes last, and whichever ends while another one lasts."""
    draw, texts = random.Random(seed), list[str]()
    for _ in range(draw.randint(2, 4)):
        at = draw.randint(0, 6)
        texts.append(f"{draw.choice(EVENTS)} at {at}{draw.choice(ENDS).format(draw.randint(at + 1, 8))}")
    job = adaptable_job(plain.plan, choose(plain.plan, SCHEDULES[:1]))
    rehearsed_s = [row.never_s for row in rehearsed(job, *texts, iterations=8, name="never").rows]
    topology = with_events(load_topology(LONGHAUL), texts)
    plan = make_plan(topology, load_workload(PP4, {"memory": "8", "iterations": "8"}))
    plan = with_selected(plan, [make(plan, choose(plan, SCHEDULES[:1]))])
    rounds = range(plan.jobs[0].workload.warmup, plan.jobs[0].workload.warmup + 8)
    run_s = predicted_times_s(predict_training(plan, plan.cases[0]).trace, rounds)
    assert rehearsed_s == pytest.approx(list(run_s)), texts


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("the link breaks at 3", "link NAME .A -> B., datacenter NAME, or rank N"),
        (f"link {LINK} down for 3 s at 3", "link NAME delay x4.40 ms"),
        (f"link {LINK} loss 1 % at 3", "link NAME delay x4.40 ms"),
        (f"link {LINK} delay 4 ms at iteration 3 + 2 ms", "link NAME delay x4.40 ms"),
        ("other rank 1 slower x2 at 3", "one of the jobs .tiny-gpt-pp4"),
        (
            "link nowhere delay x4 at 3",
            "--event: link nowhere .*: got 'nowhere', expected one of the links .paris--warsaw",
        ),
        (f"link {LINK} paris -> oslo delay x4 at 3", "paris -> warsaw or warsaw -> paris, as"),
        (f"link {LINK} delay 4 parsecs at 3", "a time with a unit"),
        (f"link {LINK} rate x0 at 3", "a factor from x0.01"),
        (f"link {LINK} delay x4 at 9 to 9", "more than 9"),
        (f"link {LINK} traffic 100 % every 3 at 1", "less than 100 %"),
        ("rank 7 slower x2 at 3", "0 to 3"),
    ],
)
def test_an_event_that_cannot_be_is_refused(plain: AdaptableJob, event: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        change(event, plain.plan)


def told(tmp_path: Path, *words: str) -> str:
    arguments = ["adapt", str(LONGHAUL), str(PP4), "--schedule", "crosspipe-greedy", "--iterations", "20"]
    more = ["--event", f"link {LINK} delay x4 at 5", "--picture", str(tmp_path / "adapt.svg"), "-q", *words]
    done = CliRunner().invoke(app, [*arguments, *more], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_says_what_was_seen_believed_and_decided(tmp_path: Path) -> None:
    said = told(tmp_path)
    for words in ("happens", "seen", "believed", "decided", "paris -> warsaw: 40.8 ms", "made anew", "oracle"):
        assert words in said, words
    assert max(map(len, said.replace(str(tmp_path), "").splitlines())) <= 80
    assert "<svg" in (tmp_path / "adapt.svg").read_text()


def test_best_is_no_schedule_of_a_job_that_adapts() -> None:
    """Which one is the best is what its controller finds."""
    event = ["--event", f"link {LINK} delay x4 at 5"]
    done = CliRunner().invoke(app, ["adapt", str(LONGHAUL), str(PP4), "--schedule", "best", *event])
    assert isinstance(done.exception, BadInput)
    assert "--schedule: option: got 'best', expected names of schedules" in str(done.exception)


def test_the_command_for_machines(tmp_path: Path) -> None:
    found = json.loads(told(tmp_path, "--json"))
    rows = found["iterations"]
    assert [row["iteration"] for row in rows if row["alarms"]] == [5]
    (swap,) = [row for row in rows if row["swap_to"]]
    assert swap["iteration"] == 5, "four times the delay is evident"
    assert {estimate.get("source") for estimate in swap["believed"]} == {"paris", "warsaw"}
    assert found["controller_s"] == pytest.approx(sum(row["controller_s"] for row in rows))
    assert found["never_s"] > found["controller_s"] > found["oracle_s"]


def test_an_event_behind_the_last_iteration_is_refused(tmp_path: Path) -> None:
    """As a run's: else it would look as if nothing came of it."""
    words = ["adapt", str(LONGHAUL), str(PP4), "--iterations", "5", "--picture", str(tmp_path / "adapt.svg")]
    done = CliRunner().invoke(app, [*words, "--event", f"link {LINK} delay x4 at 5"])
    assert isinstance(done.exception, BadInput)
    assert "expected an iteration from 0 to 4" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_events_of_the_topology_are_rehearsed(tmp_path: Path) -> None:
    """They were left out without a word."""
    network, job = yaml.safe_load(LONGHAUL.read_text()), yaml.safe_load(PP4.read_text())
    network["events"] = [f"link {LINK} rate 30 % at 2", f"link {LINK} delay x2 at 1 to 3"]
    (tmp_path / "net.yaml").write_text(yaml.safe_dump(network))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job | {"schedules": ["1f1b"], "iterations": 4}))
    files = [str(tmp_path / "net.yaml"), str(tmp_path / "job.yaml")]
    words = ["--iterations", "4", "--controller", "never", "--picture", str(tmp_path / "a.svg"), "-q", "--json"]
    rehearsed = json.loads(CliRunner().invoke(app, ["adapt", *files, *words]).output)
    predicted = json.loads(CliRunner().invoke(app, ["predict", *files, "-q", "--json"]).output)["iterations"]
    times = [row["never_s"] for row in rehearsed["iterations"]]
    assert times == pytest.approx([row["predicted_s"] for row in predicted], rel=1e-9)
    assert len(set(times)) == 4
    assert rehearsed["warnings"] == []
    (tmp_path / "net.yaml").write_text(yaml.safe_dump(network | {"events": [f"link {LINK} rate 30 % at 1 s"]}))
    refused = CliRunner().invoke(app, ["adapt", *files, *words])
    assert f"{files[0]}: event: got 'link {LINK} rate 30 % at 1 s'" in str(refused.exception)


@pytest.mark.parametrize(
    ("pacing", "said"),
    [
        ({"F": {"median": "20 ms", "p95": "30 ms"}, "I": "20 ms", "W": "20 ms"}, "vary: these are times with their"),
        ({"F": "20 ms", "I": "20 ms", "W": "20 ms", "factors": [[1, 1], [1, 2]]}, "have factors of their own"),
    ],
)
def test_slots_that_are_not_as_said_are_told_of(pacing: dict[str, Any], said: str, tmp_path: Path) -> None:
    job = yaml.safe_load(PP4.read_text())
    job |= {"pacing": pacing, "schedules": ["1f1b"], "parallelism": {"pipeline": 2, "data": 2}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    rehearse_it = ["adapt", "NETWORK", "JOB", "--iterations", "3", "--picture", str(tmp_path / "a.svg"), "-q"]
    files = {"NETWORK": str(LONGHAUL), "JOB": str(tmp_path / "job.yaml")}
    compare = ["schedule", "compare", "NETWORK", "JOB", "--schedule", "1f1b"]
    tune = ["tune", "JOB", "NETWORK", "--microbatch-size", "4", "--sequence", "32"]
    for words in (rehearse_it, compare, tune):
        for more in ([], ["--json"]):
            done = CliRunner().invoke(app, [files.get(word, word) for word in (*words, *more)])
            assert done.exit_code == 0, done.output
            assert said in " ".join(done.output.split()), words


def test_the_planned_belief_is_that_of_the_plan(plain: AdaptableJob) -> None:
    belief = planned_belief(plain)
    assert belief.paths[crossed("paris", "warsaw", 0)].delay_s.value == 0.0102
    assert belief.slots[3, Kind.B].value == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("words", "length"),
    [
        ((), 60),
        (("--set", "iterations=6"), 6),
        (("--iterations", "5"), 5),
        (("--iterations=5", "--set=iterations=6"), 5),
    ],
)
def test_as_many_iterations_are_rehearsed_as_are_asked_for(tmp_path: Path, words: tuple[str, ...], length: int) -> None:
    """`--set iterations=6` was left out without a word."""
    files = str(LONGHAUL), str(PP4), "--schedule", "1f1b", "--picture", str(tmp_path / "adapt.svg")
    event = "--event", "link paris--warsaw delay x2 at 3"
    done = CliRunner().invoke(app, ["adapt", *files, *event, *words, "--json", "-q"])
    assert len(json.loads(done.output)["iterations"]) == length


def test_no_more_iterations_are_rehearsed_than_by_its_option() -> None:
    done = CliRunner().invoke(app, ["adapt", str(LONGHAUL), str(PP4), "--set", "iterations=10001"])
    assert "--set: iterations: got 10001, expected at most 10,000" in str(done.exception)
