"""Weights that move to other ranks: what is sent, how long that takes, and when that is worth it to a job."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.adaptation import controller
from testbed.adaptation.adaptable_job import AdaptableJob, adaptable_job, planned_belief
from testbed.adaptation.adapting import adapting_job
from testbed.adaptation.believed_problem import believed
from testbed.adaptation.may_change import MayChange
from testbed.adaptation.prospects import Prospects
from testbed.adaptation.rehearsal import rehearse
from testbed.adaptation.rehearsal_changes import change
from testbed.adaptation.rehearsal_world import AS_PACED, OneJobsWorld, SlotVariation
from testbed.adaptation.sightings import sighting
from testbed.adaptation.swap_costs import sending_s
from testbed.errors import BadInput
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import PipelineRoutes
from testbed.plan import costs
from testbed.plan.exchange import exchange_of
from testbed.plan.moved_weights import (
    MovedWeights,
    Seat,
    block_elements,
    blocks_of,
    moved_weights,
    moving_s,
    pieces,
    require_movable,
    stage_parts,
    used_up,
)
from testbed.plan.plan import Plan
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.traffic import swap_traffic
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.spec import load_workload

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
LINEAR, WAVE, LOOP = (0, 1, 2, 3), (0, 1, 2, 3, 3, 2, 1, 0), (0, 1, 2, 3, 0, 1, 2, 3)
LINK = "paris--warsaw"
PIECE = 100.0
NOTICE = 1e-3
"""Word of a receive has a few bytes itself."""


def plan_of(*names: str, settings: tuple[str, ...] = ()) -> Plan:
    plan = load_plan(LONGHAUL, PP4, settings=["memory=8", *settings])
    chosen = choose(plan, list(names))
    return with_cases(plan, chosen, make(plan, chosen).made)


@pytest.mark.parametrize("layers", [8, 9, 13, 24])
@pytest.mark.parametrize(("before", "after"), [(LINEAR, WAVE), (WAVE, LINEAR), (LOOP, WAVE), (LINEAR, LINEAR)])
def test_every_layer_goes_from_who_has_it_to_who_gets_it(
    layers: int, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    plan = load_plan(LONGHAUL, PP4, settings=[f"model.layers={layers}"])
    spec = plan.jobs[0].workload.model
    parts = stage_parts(spec, len(before), len(after))
    assert sorted(layer for part in parts for layer in part.layers) == list(range(layers + 2)), (
        "each once, with its ends"
    )
    for part in parts:
        assert set(part.layers) <= set(spec.stage_layers(part.old, len(before)))
        assert set(part.layers) <= set(spec.stage_layers(part.new, len(after)))
    moved = moved_weights(plan, 0, before, after)
    assert all(one.source == before[one.part.old] != after[one.part.new] == one.target for one in moved)
    stays = Counter(before[part.old] for part in parts if before[part.old] == after[part.new] for _ in part.blocks)
    goes = sum(len(one.part.blocks) for one in moved)
    assert goes + sum(stays.values()) == layers
    assert (goes == 0) == (before == after)


@pytest.mark.parametrize(("kind", "numbers"), [("adamw", 3), ("sgd", 2)])
def test_what_the_optimizer_keeps_goes_with_them(kind: str, numbers: int) -> None:
    plan = load_plan(LONGHAUL, PP4, settings=[f"optimizer.kind={kind}", "model.dtype=float64"])
    moved, model = moved_weights(plan, 0, LINEAR, WAVE), plan.jobs[0].workload.model
    (first,) = [one for one in moved if 2 in one.part.blocks]
    assert (first.source, first.target) == (1, 2)
    assert first.payload_bytes == numbers * 8 * model.stage_parameter_count(2, 8)
    everything = moved_weights(plan, 0, (0, 0, 0, 0), (1, 1, 1, 1))
    assert sum(one.payload_bytes for one in everything) == numbers * 8 * model.parameter_count()


def test_the_shortest_of_messages_takes_a_slow_link_for_each_receive_that_is_posted() -> None:
    """On 3 Mbit/s those of eight microbatches and two replicas take longer than the link's delay; where receives are
    posted late there is nothing to use up."""
    settings = ["memory=8", "parallelism={pipeline: 2, data: 2}", "placement=[paris/0,warsaw/0]"]
    settings += ["data_parallel={replicas: [[paris/1,warsaw/1]], sharding: none}", "links.0.rate=3 Mbit/s"]
    found_s = []
    for more in ([], ["receives=late"], ["streams=3"]):
        plan = load_plan(LONGHAUL, PP4, settings=[*settings, "links.0.fibre=100 km", *more])
        job = adaptable_job(plan, choose(plan, ["1f1b"]), MayChange(microbatches=(4,)))
        one, other = (recipe.setting for recipe in job.recipes[:2])
        problems = {recipe.setting: recipe.problem for recipe in job.recipes}
        found_s.append(sending_s(job, plan, problems.__getitem__, one, other))
        links = problems[one].links
    sent_s = 8 * 2 * (2 * 114 + 4) * links[0].seconds_per_byte
    assert sent_s > 8 * links[0].delay_s
    assert found_s == pytest.approx([sent_s + links[0].delay_s, 0.0, 3 * sent_s + links[0].delay_s])


def test_a_link_carries_one_after_the_other_and_word_of_receives_comes_first() -> None:
    plan = plan_of("1f1b")
    problem = costs.problem(plan, plan.cases[0].jobs[0].choice)
    (part, *_) = stage_parts(plan.jobs[0].workload.model, 4, 8)

    def one(source: int, target: int, size: float) -> MovedWeights:
        return MovedWeights(source, target, part, int(size), size, PIECE)

    assert moving_s(problem, [], problem.route) == 0
    assert moving_s(problem, [one(0, 1, 1e9)], problem.route) == 0, "inside a datacenter nothing is on its way"
    assert moving_s(problem, [one(0, 2, 1e6)], problem.route) == pytest.approx(2 * 0.0102 + 8e-3, rel=NOTICE)
    assert moving_s(problem, [one(0, 2, 1e6), one(1, 3, 2e6)], problem.route) == pytest.approx(
        2 * 0.0102 + 24e-3, rel=NOTICE
    ), "they share it"
    assert moving_s(problem, [one(0, 2, 1e6), one(3, 1, 2e6)], problem.route) == pytest.approx(
        2 * 0.0102 + 16e-3, rel=NOTICE
    ), "not both ways"


ZERO_1 = [
    (2, 2, "ring", 7, ((0, 1), (0, 1, 1, 0))),
    (2, 2, "direct", 5, ((0, 1, 0, 1), (0, 1, 1, 0))),
    (3, 2, "hierarchical", 9, ((0, 1, 1, 0), (0, 1))),
    (3, 3, "hierarchical", 8, ((0, 1, 2), (0, 1, 2, 2, 1, 0))),
    (4, 2, "hierarchical", 6, ((1, 0), (0, 1, 0, 1))),
    (2, 2, "ring", 8, ((0, 1), (1, 0))),
]
"""Replicas, ranks, how they reduce, layers, and where stages are before and after."""


@pytest.mark.parametrize(("replicas", "ranks", "algorithm", "layers", "cuts"), ZERO_1)
def test_every_shard_goes_from_who_steps_it_to_who_steps_it_then(
    replicas: int, ranks: int, algorithm: str, layers: int, cuts: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """By playing it: vectors of all stages hold numbers of parameters, who has which cells is the exchange's."""
    draw = random.Random(f"{replicas} {algorithm} {layers}")
    sites = [[draw.choice("abc") for _ in range(ranks)] for _ in range(replicas)]
    settings = {
        "parallelism": f"{{pipeline: {ranks}, data: {replicas}}}",
        "data_parallel": f"{{algorithm: {algorithm}}}",
        "model.layers": str(layers),
        "model.d_model": "20",
    }
    workload = load_workload(PP4, settings)
    exchanges = [exchange_of(workload, [of[rank] for of in sites]) for rank in range(ranks)]
    spec, counts = workload.model, block_elements(workload)
    assert sum(counts) == spec.parameter_count()
    begins = [sum(counts[:block]) for block in range(layers + 1)]

    def shards(stages: tuple[int, ...]) -> dict[int, tuple[Seat, int]]:
        """Of every parameter of the model, who steps it, and its place in the stage."""
        found = dict[int, tuple[Seat, int]]()
        for stage, rank in enumerate(stages):
            blocks = blocks_of(spec, stage, len(stages))
            whole = range(begins[blocks.start], begins[blocks.stop])
            size = -(-len(whole) // exchanges[rank].n_cells)
            for replica, cells in enumerate(exchanges[rank].shards):
                for first, behind in cells:
                    mine = whole[size * first : size * behind]
                    found |= {number: (Seat(replica, rank), number - whole.start) for number in mine}
        return found

    before, after = map(shards, cuts)
    assert before.keys() == after.keys() == set(range(begins[-1])), "each is one replica's"
    moved: dict[int, tuple[Seat, Seat]] = {}
    for piece in pieces(workload, *cuts, exchanges):
        assert piece.elements
        start = begins[piece.part.blocks.start]
        for run in piece.elements:
            assert moved.keys().isdisjoint(range(start + run.start, start + run.stop))
            moved |= {start + number: (piece.source, piece.target) for number in run}
            # one run of what is stepped at once, at both ends: parameters, then what is kept of all of them
            for stepped in (before, after):
                places = [stepped[start + number] for number in run]
                assert {seat for seat, _ in places} == {places[0][0]}
                assert [place for _, place in places] == list(range(places[0][1], places[0][1] + len(run)))
    assert moved == {number: (before[number][0], after[number][0]) for number in before}


def test_what_replicas_share_is_sent_once(tmp_path: Path) -> None:
    """All replicas together send no more than one that has all; tensor ranks send their own."""
    tensor = "parallelism={pipeline: 2, data: 2, tensor: 2}", "placement=[a/0,a/1,b/0,b/1]"
    (tmp_path / "far.yaml").write_text(FAR.replace("nodes: 2", "nodes: 4"))
    totals = {}
    for sharding in ("none", "zero-1"):
        replicas = f"data_parallel={{sharding: {sharding}, replicas: [[c/1,c/0,a/2,a/3]]}}"
        plan = load_plan(tmp_path / "far.yaml", PP4, settings=["memory=8", *tensor, replicas])
        for stages in ((0, 1, 1, 0), (1, 0)):
            moved = moved_weights(plan, 0, (0, 1), stages)
            assert all(one.source != one.target and one.source % 2 == one.target % 2 for one in moved)
            totals[sharding, stages] = sum(one.payload_bytes for one in moved)
    whole, cut = totals["none", (1, 0)], totals["none", (0, 1, 1, 0)]
    assert 2 * totals["zero-1", (1, 0)] == whole, "every shard goes to its like"
    assert cut / 2 < totals["zero-1", (0, 1, 1, 0)] <= whole / 2, "shards of smaller stages are others"


FAR = """
name: far
datacenters: {a: {nodes: 2}, b: {nodes: 2}, c: {nodes: 2}}
links:
  - {between: [a, b], delay: 3 ms, rate: 1 Gbit/s}
  - {between: [b, c], delay: 40 ms, rate: 1 Gbit/s}
"""
WHOLE = ("parallelism={pipeline: 2, data: 2}", "placement=[a/0,b/0]")


def far_plan(directory: Path, sharding: str) -> Plan:
    (directory / "far.yaml").write_text(FAR)
    replicas = f"data_parallel={{sharding: {sharding}, replicas: [[c/1,c/0]]}}"
    plan = load_plan(directory / "far.yaml", PP4, settings=["memory=8", *WHOLE, replicas])
    chosen = choose(plan, ["1f1b", "zb-v"])
    return with_cases(plan, chosen, make(plan, chosen).made)


def test_word_of_a_receive_waits_behind_weights_and_links_pass_on_what_they_have() -> None:
    """From a to c over b, while b sends a as much: word from c to a waits behind that."""
    plan = plan_of("1f1b")
    (part, *_) = stage_parts(plan.jobs[0].workload.model, 4, 8)
    problem = replace(
        costs.problem(plan, plan.cases[0].jobs[0].choice),
        links=tuple(LinkCost(delay_s, 8e-9) for delay_s in (2e-3, 3e-3, 5e-3, 7e-3)),
        pipelines=(PipelineRoutes({(0, 2): (0, 1), (2, 0): (2, 3), (1, 0): (3,), (0, 1): (0,)}),),
    )
    alone = [MovedWeights(0, 2, part, 10**6, 1e6, PIECE)]
    assert moving_s(problem, alone, problem.route) == pytest.approx(12e-3 + 5e-3 + 8e-3, rel=2e-3), (
        "once over two equal links"
    )
    both = [*alone, MovedWeights(1, 0, part, 10**6, 1e6, PIECE)]
    in_pieces = [alone[0]._replace(piece_bytes=3e5)]
    assert moving_s(problem, in_pieces, problem.route) == pytest.approx(12e-3 + 5e-3 + 8e-3 + 2.4e-3, rel=NOTICE), (
        "whole"
    )
    faster = replace(problem, links=(*problem.links[:1], LinkCost(3e-3, 1e-9), *problem.links[2:]))
    last = moving_s(faster, in_pieces, problem.route)
    assert last == pytest.approx(12e-3 + 5e-3 + 8e-3 + 1e-4, rel=NOTICE), "its last piece is the shortest"
    cards = replace(
        problem,
        links=(LinkCost(0.0, 12e-9), LinkCost(0.0, 12e-9), LinkCost(0.0, 8e-9), LinkCost(0.0, 8e-9)),
        pipelines=(PipelineRoutes({(0, 2): (0, 2), (1, 3): (1, 2), (2, 0): (3,), (3, 1): (3,)}),),
    )
    two = [MovedWeights(source, source + 2, part, 10**6, 1e6, 1e4) for source in (0, 1)]
    shared_s = moving_s(cards, two, cards.route)
    assert shared_s == pytest.approx(16e-3 + 1.2e-4, rel=2e-3), "two cards keep a faster link busy between them"
    # word from a is with b after 2 ms, which sends until 10 ms: then word from c goes on, which came after 5 ms
    assert moving_s(problem, both, problem.route) == pytest.approx(10e-3 + 7e-3 + 5e-3 + 8e-3, rel=2e-3)


def test_replicas_far_from_each_other_take_at_least_as_long_as_that_is(tmp_path: Path) -> None:
    plan = far_plan(tmp_path, "none")
    problem = costs.problem_of_case(plan, plan.cases[1], job=0)
    moved = moved_weights(plan, 0, (0, 1), (0, 1, 1, 0))
    one_way = max(sum(one.wire_bytes for one in moved if one.source == source) for source in (0, 1)) * 8e-9
    assert 0 < one_way < 0.03
    before, workload = costs.problem_of_case(plan, plan.cases[0], job=0), plan.jobs[0].workload
    shortest = used_up(before, workload, moves=True)
    assert moving_s(problem, moved, RankRoutes(plan, plan.cases[1]), shortest) == pytest.approx(43e-3, rel=1e-3), (
        "longer than both round trips and the weights"
    )
    slow = replace(problem, links=tuple(link._replace(seconds_per_byte=8e-8) for link in problem.links))
    assert moving_s(slow, moved, RankRoutes(plan, plan.cases[1])) == pytest.approx(2 * 3e-3 + 10 * one_way, rel=NOTICE)


SLOW = """
name: slow
datacenters: {a: {nodes: 4}, b: {nodes: 2}}
links: [{between: [a, b], delay: 60 ms, rate: 10 Mbit/s}]
"""


@pytest.mark.parametrize(("streams", "took_s"), [(1, 0.122416), (3, 0.126221)])
def test_on_slow_links_ranks_send_one_after_the_other_and_acknowledge(
    tmp_path: Path, streams: int, took_s: float
) -> None:
    """As measured on the virtual clock: word of the last ranks waits behind the first ones' short messages."""
    (tmp_path / "slow.yaml").write_text(SLOW)
    settings = [
        "model={kind: linear, layers: 4, d_model: 8, sequence: 4}",
        "pacing={F: 10 ms, I: 10 ms, W: 10 ms}",
        "parallelism={pipeline: 2, data: 3}",
        "placement=[a/0,a/1]",
        "data_parallel={parameters: 20 kB, replicas: [[b/0,b/1],[a/2,a/3]]}",
        "message=3 kB",
        "receives=late",
        f"streams={streams}",
    ]
    plan = load_plan(tmp_path / "slow.yaml", PP4, settings=settings)
    chosen = choose(plan, ["1f1b", "zb-v"])
    before, after = (costs.problem(plan, choice) for choice in chosen)
    plan = with_cases(plan, chosen, make(plan, chosen).made)
    moved = moved_weights(plan, 0, (0, 1), (0, 1, 1, 0))
    shortest = used_up(before, plan.jobs[0].workload, moves=True)
    assert moving_s(after, moved, RankRoutes(plan, plan.cases[1]), shortest) == pytest.approx(took_s, rel=1e-3)


def test_what_replicas_have_posted_is_used_up_and_posted_anew_where_stages_move(tmp_path: Path) -> None:
    plan = far_plan(tmp_path, "none")
    linear, wave = plan.cases
    cut = replace(linear, jobs=(replace(linear.jobs[0], microbatches=16),))
    far = [swap_traffic(plan, linear, case, 0)[2:4] for case in (wave, cut)]
    assert min(far[0]) > 0, "between replicas, on a link that no pipeline uses"
    assert max(far[1]) == 0, "as many parameters on the same ranks"


def test_what_a_swap_sends_is_counted_per_direction() -> None:
    plan = plan_of("1f1b", "zb-h1", "zb-v")
    linear, other, wave = plan.cases
    assert not any(swap_traffic(plan, linear, other, 0)), "another order of the same messages"
    there, back, *_ = swap_traffic(plan, linear, wave, 0)
    moved = moved_weights(plan, 0, LINEAR, WAVE)
    east = sum(one.wire_bytes for one in moved if one.source < 2 <= one.target)
    west = sum(one.wire_bytes for one in moved if one.target < 2 <= one.source)
    assert 0 < east < there < 1.1 * east
    assert 0 < west < back < 1.1 * west
    cut = replace(linear, jobs=(replace(linear.jobs[0], microbatches=16),))
    few = swap_traffic(plan, linear, cut, 0)
    assert 0 < max(few) < 1e-2 * there, "the shortest of messages"
    assert few[0] == pytest.approx(few[1], rel=0.2)
    late = replace(
        plan, jobs=(replace(plan.jobs[0], workload=plan.jobs[0].workload.model_copy(update={"receives": "late"})),)
    )
    assert not any(swap_traffic(late, linear, cut, 0)), "nothing was posted"


# --- a job that adapts ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job() -> AdaptableJob:
    plan = load_plan(LONGHAUL, PP4, settings=["memory=8"])
    return adaptable_job(plan, choose(plan, ["zb-h1", "zb-v", "interleaved-1f1b"]), MayChange((16,), stages=True))


def test_schedules_with_stages_elsewhere_are_candidates_if_they_may_move(job: AdaptableJob) -> None:
    labels = [recipe.label for recipe in job.recipes]
    assert labels[:3] == ["zb-h1", "zb-v", "interleaved-1f1b"]
    assert {setting.stages for setting in job.settings} == {LINEAR, WAVE, LOOP}
    shared = load_plan(LONGHAUL, PP4, settings=["parallelism={pipeline: 2, data: 2}"])
    assert len(adaptable_job(shared, choose(shared, ["1f1b", "zb-v"]), MayChange(stages=True)).settings) == 2


def test_shards_of_a_model_that_does_not_say_what_its_stages_have_stay(tmp_path: Path) -> None:
    """Where a rank's shard ends in a stage that it has not is known by that alone."""
    text = (ROOT / "examples/my_model.py").read_text(encoding="utf-8")
    (tmp_path / "guessing.py").write_text(text.replace("def stage_parameter_count(", "def unsaid("))
    parallel = "parallelism={pipeline: 2, data: 2}"

    def job(model: Path, *settings: str) -> AdaptableJob:
        of_model = f"model={{kind: {model}:Mlp, layers: 6}}"
        plan = load_plan(LONGHAUL, PP4, settings=["memory=8", parallel, of_model, *settings])
        return adaptable_job(plan, choose(plan, ["1f1b", "zb-v"]), MayChange(stages=True))

    assert len(job(ROOT / "examples/my_model.py").settings) == 2
    assert len(job(tmp_path / "guessing.py", "data_parallel.sharding=none").settings) == 2
    with pytest.raises(BadInput, match=r"--vary: zb-v: .*sharding: none, or a model with stage_parameter_count"):
        job(tmp_path / "guessing.py")


def test_stages_elsewhere_are_no_other_links_or_ranks(job: AdaptableJob) -> None:
    labels = ["zb-v", "interleaved-1f1b with 16 microbatches", "zb-h1", "zb-v with 16 microbatches"]

    def decide(outlook: controller.Outlook) -> object:
        wanted = labels.pop(0) if labels else outlook.running.label
        return next(each for each in outlook.prospects if each.label == wanted)

    world, adapting = OneJobsWorld(job, [], SlotVariation(0.02, 5)), adapting_job(job, decide, 0.0, "zb-h1")  # type: ignore[arg-type]
    for iteration in range(8):
        running = adapting.running
        seen = sighting(world.trace(running, iteration), job.ranks, world.probes_s(iteration, running.setting))
        step = adapting.after(iteration, seen)
        assert step.learnt == ((), ()), iteration
        assert step.stays_s == pytest.approx(seen.iteration_s, rel=0.05)


def test_one_rank_that_sends_nothing_has_its_stages_cut_anew() -> None:
    """As a single stage it has no messages, of which another cut could have longer ones."""
    settings = ["memory=8", "parallelism={pipeline: 1, data: 2}", "placement=[paris/0]"]
    plan = load_plan(LONGHAUL, PP4, settings=settings)
    job = adaptable_job(plan, choose(plan, ["1f1b", "looped-bfs"]), MayChange(stages=True))
    assert [setting.stages for setting in job.settings] == [(0,), (0, 0)]

    def decide(outlook: controller.Outlook) -> object:
        return next(each for each in outlook.prospects if each.label == "looped-bfs")

    world, adapting = OneJobsWorld(job, [], AS_PACED), adapting_job(job, decide, 0.0, "1f1b")  # type: ignore[arg-type]
    for iteration in range(3):
        running = adapting.running
        assert running.label == ("looped-bfs" if iteration else "1f1b")
        seen = sighting(world.trace(running, iteration), job.ranks, world.probes_s(iteration, running.setting))
        step = adapting.after(iteration, seen)
        assert step.learnt == ((), ()), iteration
        assert step.stays_s == pytest.approx(seen.iteration_s, rel=0.01)


@pytest.mark.parametrize(
    "event", [f"link {LINK} delay x3 at 0", f"link {LINK} rate x0.4 at 0", "rank 1 slower x1.4 at 0"]
)
def test_what_is_believed_predicts_stages_elsewhere(job: AdaptableJob, event: str) -> None:
    world = OneJobsWorld(job, [change(event, job.plan)], AS_PACED)
    for begin in ("zb-h1", "zb-v with 16 microbatches"):
        adapting = adapting_job(job, controller.never(), 0.0, begin)
        for iteration in range(3):
            running = adapting.running
            seen = sighting(world.trace(running, iteration), job.ranks, world.probes_s(iteration, running.setting))
            belief = adapting.after(iteration, seen).belief
        for prospect in Prospects(job).under(belief):
            assert prospect.predicted_s == pytest.approx(world.iteration_s(prospect, 0), rel=3e-3), prospect.label
    for recipe in job.recipes:
        assert believed(job, recipe, planned_belief(job)) == recipe.problem


def test_what_weights_take_to_move_is_part_of_what_they_have_to_bring() -> None:
    plan = load_plan(LONGHAUL, PP4, settings=["memory=8"])
    may, names = MayChange(stages=True), ["zb-h1", "zb-v"]
    small = adaptable_job(plan, choose(plan, names), may)
    model = "model={layers: 8, d_model: 512, heads: 4, sequence: 16}"
    plan = load_plan(LONGHAUL, PP4, settings=["memory=8", "message=1 MB", model])
    large = adaptable_job(plan, choose(plan, names), may)
    begins, swaps = [], []
    for job in (small, large):
        found = rehearse(job, [], 12, controller.choose("ski-rental"), swap_s=0.02, begin="zb-h1")
        begins.append(found.rows[0].adapted_s)
        swaps.append(found.swaps)
    assert begins[0] == pytest.approx(begins[1], rel=1e-3), "the same but for their weights"
    assert swaps[0]
    assert not swaps[1] or swaps[1][0] > swaps[0][0], "it has to lose more before that is worth it"
    first = swaps[0][0]
    found = rehearse(small, [], 12, controller.choose("ski-rental"), swap_s=0.02, begin="zb-h1")
    paid_s = found.rows[first].adapted_s - found.rows[first + 1].adapted_s
    moved, wave = moved_weights(small.plan, 0, LINEAR, WAVE), small.recipes[1]
    assert paid_s == pytest.approx(
        0.02 + moving_s(wave.problem, moved, small.routes_between(small.plan, wave.setting, wave.problem))
    )
    assert found.rows[first - 1].step.swap_s == pytest.approx(paid_s), "as it believed"


BETWEEN = """
name: between
datacenters: {a: {nodes: 2}, b: {nodes: 2}}
links:
  - {name: north, between: [a, b], delay: 3 ms, rate: 1 Gbit/s}
  - {name: south, between: [a, b], delay: 9 ms, rate: 1 Gbit/s}
"""


def test_what_goes_between_replicas_takes_the_routes_of_pipelines(tmp_path: Path) -> None:
    """Also where no message of an iteration goes: from the first rank of one to the second of the other."""
    (tmp_path / "between.yaml").write_text(BETWEEN)
    replicas = "placement=[a/0,b/0]", "data_parallel={replicas: [[a/1,b/1]]}"
    plan = load_plan(
        tmp_path / "between.yaml", PP4, settings=["memory=8", "parallelism={pipeline: 2, data: 2}", *replicas]
    )
    job = adaptable_job(plan, choose(plan, ["1f1b", "zb-v"]), MayChange(routes=2, stages=True))
    costs_s = {}
    for setting, recipe in job.settings.items():
        route_of = job.routes_between(plan, setting, recipe.problem)
        assert route_of(0, 3) == route_of(2, 1) == recipe.problem.route(0, 1)
        assert route_of(1, 2) == recipe.problem.route(1, 0)
        assert route_of(0, 2) == (), "inside a datacenter"
        moved = moved_weights(plan, 0, LINEAR[:2], (0, 1, 1, 0))
        assert (3, 0) in {(one.source, one.target) for one in moved}
        costs_s[setting.stages, route_of(0, 3)] = moving_s(recipe.problem, moved, route_of)
    near, far = (costs_s[(0, 1, 1, 0), (route,)] for route in (0, 2))
    assert far - near == pytest.approx(2 * 6e-3, rel=NOTICE), "there and back"
    recipe = job.recipes[0]
    own = replace(
        recipe.problem,
        links=(*recipe.problem.links, LinkCost(70e-3, 8e-9)),
        pipelines=tuple(
            each._replace(routes={**each.routes, (0, 1): (len(recipe.problem.links),)})
            for each in recipe.problem.pipelines
        ),
    )
    route_of = job.routes_between(plan, recipe.setting, own)
    assert route_of(0, 3) == route_of(2, 1) == own.route(0, 1) != recipe.problem.route(0, 1), "as it is believed to be"
    assert route_of(3, 0) == recipe.problem.route(1, 0)


MODEL = """
from testbed.spec.model import ModelSpec

class Own(ModelSpec):
    ends: tuple[int, ...]
    def boundary_shape(self, microbatch_size): return (microbatch_size, 4)
    def parameter_count(self): return 40
    def stage_layers(self, stage, n_stages):
        if n_stages == 4:
            return range(self.ends[stage], self.ends[stage + 1])
        even = super().stage_layers(stage, n_stages)
        if self.ends[-1] == 9:
            return even
        # eleven layers, of which the first two of nine shares have two each
        return range(even.start + min(even.start, 2), even.stop + min(even.stop, 2))
"""


def of_own_model(directory: Path, ends: str) -> Plan:
    (directory / "m.py").write_text(MODEL)
    model = f"model={{kind: {directory / 'm.py'}:Own, layers: 9, ends: {ends}}}"
    return load_plan(LONGHAUL, PP4, settings=[model, "memory=8"])


@pytest.mark.parametrize("ends", ["[0, 3, 5, 7, 9]", "[0, 1, 3, 6, 9]", "[0, 2, 4, 6, 9]", "[0, 6, 7, 8, 9]"])
def test_a_model_that_cuts_itself_moves_the_layers_that_it_says(ends: str, tmp_path: Path) -> None:
    """With even shares in their place a layer was never sent, and drawn anew."""
    plan = of_own_model(tmp_path, ends)
    workload, spec = plan.jobs[0].workload, plan.jobs[0].workload.model
    for before, after in ((4, 4), (4, 2), (8, 4), (4, 8)):
        parts = stage_parts(spec, before, after)
        assert sorted(layer for part in parts for layer in part.layers) == list(range(9))
        for part in parts:
            assert set(part.layers) <= set(spec.stage_layers(part.old, before)) & set(
                spec.stage_layers(part.new, after)
            )
    require_movable(workload, LINEAR, (2, 0, 3, 1), "--swap", "schedule")


def test_stages_that_end_within_the_smallest_share_do_not_move(tmp_path: Path) -> None:
    plan = of_own_model(tmp_path, "[0, 1, 4, 7, 11]")  # its first two shares of 9 have two layers each
    with pytest.raises(BadInput, match=r"stage 0 of 4: layers 0 to 0, which are no whole stages of 9"):
        require_movable(plan.jobs[0].workload, LINEAR, (2, 0, 3, 1), "--swap", "schedule")
    require_movable(plan.jobs[0].workload, LINEAR, LINEAR, "--swap", "schedule")
