"""A job that adapts may move its flows to another route: what it believes of routes, and when it goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import run_testbed

from testbed.adaptation import controller
from testbed.adaptation.adaptable_job import AdaptableJob, adaptable_job, planned_belief
from testbed.adaptation.believed_problem import believed
from testbed.adaptation.estimates import Estimator, PathEstimate, exactly
from testbed.adaptation.may_change import MayChange
from testbed.adaptation.rehearsal import Rehearsal, rehearse
from testbed.adaptation.rehearsal_changes import change
from testbed.adaptation.rehearsal_world import AS_PACED, OneJobsWorld
from testbed.adaptation.sightings import PROBE_BYTES, Crossing, Sighting
from testbed.errors import BadInput, ExitCode
from testbed.plan.plan import JobSchedule
from testbed.plan.timeline import AS_PLANNED, FlowsMoved
from testbed.planning import file
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose
from testbed.routing.rerouting import rerouted, with_swap
from testbed.spec.choice import MOST_LABEL

ROOT = Path(__file__).parents[2]
PP4 = ROOT / "workloads/tiny-gpt-pp4.yaml"
PAIR: dict[str, Any] = {
    "name": "pair",
    "datacenters": {"paris": {"nodes": 2}, "warsaw": {"nodes": 2}, "vienna": {"nodes": 1}},
    "links": [
        {"name": "north", "between": ["paris", "warsaw"], "delay": "10 ms", "rate": "1 Gbit/s"},
        {"name": "south", "between": ["paris", "warsaw"], "delay": "14 ms", "rate": "1 Gbit/s"},
        {"name": "first", "between": ["paris", "vienna"], "delay": "9 ms", "rate": "700 Mbit/s"},
        {"name": "second", "between": ["warsaw", "vienna"], "delay": "9 ms", "rate": "1 Gbit/s"},
    ],
}
TOPOLOGY = """
name: pair
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}}
links:
  - {name: north, between: [paris, warsaw], delay: 10 ms, rate: 1 Gbit/s}
  - {name: south, between: [warsaw, paris], delay: 14 ms, rate: 1 Gbit/s}
"""
"""The second link is written the other way round."""
ZERO = ("--set", "data_parallel={sharding: zero-1, replicas: [[paris/1, warsaw/1]]}", "--set", "memory=8")


def job_of(routes: int = 3, placement: str = "[paris/0, paris/1, warsaw/0, warsaw/1]", *settings: str) -> AdaptableJob:
    plan = load_plan(PAIR, PP4, settings=["memory=8", "message=2.5 MB", f"placement={placement}", *settings])
    return adaptable_job(plan, choose(plan, ["1f1b", "crosspipe-greedy"]), MayChange(routes=routes))


@pytest.fixture(scope="module")
def job() -> AdaptableJob:
    return job_of()


def rehearsed(job: AdaptableJob, *events: str, iterations: int = 45) -> Rehearsal:
    changes = [change(event, job.plan) for event in events]
    return rehearse(job, changes, iterations, controller.choose("ski-rental"), swap_s=0.02, begin="crosspipe-greedy")


def test_the_routes_of_least_delay_there_and_back(job: AdaptableJob) -> None:
    labels = ["", " over south", " over first + second"]
    assert [recipe.label for recipe in job.recipes] == [
        f"{name}{label}" for label in labels for name in ("1f1b", "crosspipe-greedy")
    ]
    there, back = zip(*(setting.paths for setting in job.settings), strict=True)
    assert [path.route for path in there] == [(0,), (2,), (4, 7)]
    assert [path.route for path in back] == [(1,), (3,), (6, 5)]
    assert {path.over for path in there[:1]} == {""}
    assert len(job_of(1).settings) == 1
    assert len(job_of(2).settings) == 2


def test_each_pair_of_datacenters_has_routes_of_its_own() -> None:
    job = job_of(2, "[paris/0, warsaw/0, warsaw/1, vienna/0]")
    pairs = {path.pair for path in job.recipes[0].setting.paths}
    assert pairs == {("paris", "warsaw"), ("warsaw", "paris"), ("warsaw", "vienna"), ("vienna", "warsaw")}
    assert len(job.settings) == 4
    for setting in job.settings:
        assert {path.pair for path in setting.paths} == pairs
    many = {**PAIR, "links": [{**link, "name": f"{link['name']}{n}"} for link in PAIR["links"] for n in range(9)]}
    plan = load_plan(many, PP4, settings=["placement=[paris/0, warsaw/0, warsaw/1, vienna/0]"])
    with pytest.raises(BadInput, match="--vary: routes: got 64, expected fewer"):
        adaptable_job(plan, choose(plan, ["1f1b"]), MayChange(routes=64))


def test_where_there_is_one_route_alone_there_is_none_to_change_to() -> None:
    plan = load_plan(ROOT / "topologies/two-dc-metro.yaml", PP4)
    with pytest.raises(BadInput, match="--vary: routes: got 2, expected two of its datacenters with another route"):
        adaptable_job(plan, choose(plan, ["1f1b"]), MayChange(routes=2))


def test_recipes_are_told_apart_however_long_the_names_of_links_are() -> None:
    named = [{**link, "name": f"{link['name']}-otn-wave-of-backbone"} for link in PAIR["links"]]
    at = "placement=[paris/0, warsaw/0, warsaw/1, vienna/0]"
    plan = load_plan({**PAIR, "links": named}, PP4, settings=["memory=8", at])
    job = adaptable_job(plan, choose(plan, ["zb-h1", "zb-h2", "1f1b"]), MayChange((16,), routes=2))
    assert len(job.recipes) == 3 * 2 * 4
    for recipe in job.recipes:
        assert job.labelled(recipe.label) is recipe
        assert recipe.label.startswith(recipe.choice.label)
        assert len(f"{recipe.label} from 12345") <= MOST_LABEL


def test_what_each_route_costs_is_what_the_model_says_of_it(job: AdaptableJob) -> None:
    belief, world = planned_belief(job), OneJobsWorld(job, [], AS_PACED)
    for recipe in job.recipes:
        assert believed(job, recipe, belief) == recipe.problem == world.problem(world.state(0), recipe.setting)
    estimates = [belief.paths[setting.paths[0]] for setting in job.settings]
    assert [each.delay_s.value for each in estimates] == pytest.approx([0.01, 0.014, 0.018])
    assert [each.rate_bps.value for each in estimates] == pytest.approx([1e9, 1e9, 7e8])


def test_a_job_leaves_a_link_whose_rate_falls(job: AdaptableJob) -> None:
    found = rehearsed(job, "link north rate x0.2 at 5")
    assert found.rows[-1].running == "crosspipe-greedy over south"
    assert found.rows[-1].adapted_s < found.rows[-1].never_s
    assert found.noticed_after(5) == 1
    assert found.share is not None
    assert 0.9 <= found.share <= 1.0


def test_of_a_route_that_it_left_it_believes_what_it_last_saw(job: AdaptableJob) -> None:
    """It does not see that the link is as planned again; when it has to come back, it does."""
    found = rehearsed(job, "link north rate x0.2 at 5 to 15", "link south rate x0.1 at 30", iterations=60)
    ran = [row.running for row in found.rows]
    assert ran[20:30] == ["crosspipe-greedy over south"] * 10
    north, south, _ = (setting.paths[0] for setting in job.settings)
    at = [row.step.belief.paths for row in found.rows]
    assert at[29][north].rate_bps.value == pytest.approx(2e8, rel=0.05)
    assert at[29][south].rate_bps.value == pytest.approx(1e9, rel=0.05)
    assert at[-1][south].rate_bps.value == pytest.approx(1e8, rel=0.05)
    assert "over south" not in ran[-1]
    assert not any(row.step.learnt.alarms for row in found.rows[35:])


def test_links_of_a_route_that_it_never_took_are_what_others_say_of_them() -> None:
    """Rank 2 in vienna: what its link has become holds for the detour over it, of which nothing was ever seen."""
    job = job_of(3, "[paris/0, vienna/0, warsaw/0, warsaw/1]")
    belief, setting = planned_belief(job), job.recipes[0].setting
    ends = {("paris", "vienna"), ("vienna", "paris")}
    slow = {path: PathEstimate(exactly(0.05), exactly(7e8)) for path in setting.paths if path.pair in ends}
    assert len(slow) == 2
    changed = replace(belief, paths={**belief.paths, **slow})
    detoured = next(
        recipe
        for recipe in job.recipes
        if any(path.pair == ("vienna", "warsaw") and len(path.route) == 2 for path in recipe.setting.paths)
    )
    problem = believed(job, detoured, changed)
    used = next(path for path in detoured.setting.paths if path.pair == ("vienna", "warsaw"))
    seen_s = sum(problem.links[index].delay_s for index in used.route)
    planned_s = sum(detoured.problem.links[index].delay_s for index in used.route)
    assert seen_s == pytest.approx(planned_s + 0.041)


def test_doubts_about_a_path_that_is_no_longer_used_hold_nobody_up(job: AdaptableJob) -> None:
    north, south, _ = (setting.paths for setting in job.settings)
    estimator = Estimator(planned_belief(job))

    def seen(paths: Any, delay_s: float) -> Sighting:
        path = PathEstimate(exactly(delay_s), exactly(1e9))
        crossing = Crossing(path.crossing_s(PROBE_BYTES), path.crossing_s(2.5e6), 2.5e6)
        return Sighting(1.0, dict.fromkeys(paths, crossing), {})

    estimator.use(north)
    for delay_s in (0.01, 0.01, 0.0125):
        estimator.learn(seen(north, delay_s))
    assert estimator.doubts
    estimator.use(south)
    estimator.learn(seen(south, 0.014))
    estimator.learn(seen(south, 0.014))
    assert not estimator.doubts


# --- plans ----------------------------------------------------------------------------------------


def planned(directory: Path, *words: str) -> Path:
    (directory / "pair.yaml").write_text(TOPOLOGY)
    out = directory / "plan.json"
    done = run_testbed("plan", directory / "pair.yaml", PP4, "--schedule", "1f1b", *words, "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def test_a_plan_keeps_what_was_decided(tmp_path: Path) -> None:
    plan = file.read(planned(tmp_path, "--adapt", "ski-rental", "--vary", "routes=2"))
    assert plan.adaptation is not None
    assert plan.adaptation.routes == 2
    job = adaptable_job(plan, plan.adaptation.choices, MayChange(routes=2))
    south = next(setting for setting in job.settings if setting.paths[0].over)
    (case,) = plan.cases
    moved = job.routes_in(south)
    assert {len(route) for route in moved} == {0, 1}
    assert moved != case.routes == job.routes_in(next(iter(job.settings)))
    chosen = case.jobs[0]
    goes_on = replace(chosen, choice=chosen.choice.model_copy(update={"label": "1f1b over south from 4"}))
    after, second = with_swap(replace(plan, adaptation=None), case, goes_on, moved, 4)
    assert [type(event).__name__ for event in after.events] == ["ScheduleSwapped", "FlowsMoved", "FlowsMoved"]
    assert rerouted(after, case, second) == second.routes == moved
    assert file.from_json(file.to_json(after), "plan.json") == after
    comes_back = replace(chosen, choice=chosen.choice.model_copy(update={"label": "1f1b from 7"}))
    back, third = with_swap(after, second, comes_back, case.routes, 7)
    assert rerouted(back, second, third) == case.routes
    assert file.from_json(file.to_json(back), "plan.json") == back
    assert not any(event.route == AS_PLANNED for event in back.events if isinstance(event, FlowsMoved))
    first = after.events[1]
    assert isinstance(first, FlowsMoved)
    nowhere = replace(after, events=(*after.events[:1], replace(first, target="rome")))
    with pytest.raises(BadInput, match=r"target: got 'rome', expected a datacenter"):
        file.from_json(file.to_json(nowhere), "plan.json")
    twice = replace(after, events=(*after.events, after.events[1]))
    with pytest.raises(BadInput, match="one route at a time"):
        file.from_json(file.to_json(twice), "plan.json")


def test_flows_that_a_policy_has_sent_apart_come_back_each_to_its_own_route(tmp_path: Path) -> None:
    """All that goes from one datacenter to the other is moved; not all of it had one route before."""
    apart = ("--set", "parallelism={pipeline: 2, data: 2}", "--set", "placement=[paris/0, warsaw/0]", *ZERO)
    plan = file.read(planned(tmp_path, *apart, "--adapt", "ski-rental", "--vary", "routes=2"))
    (case,) = plan.cases
    north, south = (0,), (3,)
    place = case.routes.index(north)
    assert case.routes.count(north) > 1
    case = replace(case, routes=(*case.routes[:place], south, *case.routes[place + 1 :]))
    plan = replace(plan, cases=(case,))
    assert plan.adaptation is not None
    job = adaptable_job(plan, plan.adaptation.choices, MayChange(routes=2))
    over = next(setting for setting in job.settings if setting.paths[0].over)
    moved, chosen = job.routes_in(over), case.jobs[0]
    there, second = with_swap(replace(plan, adaptation=None), case, labelled(chosen, "over"), moved, 4)
    assert rerouted(there, case, second) == second.routes == moved != case.routes
    back, third = with_swap(there, second, labelled(chosen, "back"), case.routes, 7)
    assert rerouted(back, second, third) == third.routes == case.routes
    assert any(event.route == AS_PLANNED for event in back.events if isinstance(event, FlowsMoved))
    assert file.from_json(file.to_json(back), "plan.json") == back


def labelled(chosen: JobSchedule, label: str) -> JobSchedule:
    return replace(chosen, choice=chosen.choice.model_copy(update={"label": label}))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vary", "routes=2"), "--adapt beside it"),
        (("--adapt", "ski-rental", "--vary", "routes=0"), "got 'routes=0', expected microbatches=N,N..., routes=N"),
        (("--adapt", "ski-rental", "--vary", "routes=2,3"), "routes=N (1 to 64) or stages"),
        (("--adapt", "ski-rental", "--vary", "microbatches"), "got 'microbatches'"),
        (("--adapt", "ski-rental", "--vary", "microbatches=4,x"), "got 'microbatches=4,x'"),
        (("--adapt", "ski-rental", "--vary", "stages=2"), "got 'stages=2'"),
    ],
)
def test_what_cannot_be_varied_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run_testbed("plan", "two-dc-longhaul", "tiny-gpt-pp4", *words, "-o", tmp_path / "plan.json")
    assert done.returncode == ExitCode.BAD_INPUT
    assert said in " ".join(done.stderr.split())
