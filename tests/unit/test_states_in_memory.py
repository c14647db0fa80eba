"""States in each other's memory: who keeps whose, what a failure leaves, what is sent, and what that is worth."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.errors import BadInput
from testbed.goodput.intervals import both_lost_share, expected_goodput, expected_goodput_in_memory
from testbed.goodput.recovering_plan import read_checkpoints, read_failure
from testbed.goodput.spans import Keeping, KeptIn, Span, Spending, foretold, shares_of
from testbed.goodput.state_times import exchange_s, keeping_of
from testbed.plan.events import links_change
from testbed.plan.mesh import Mesh
from testbed.plan.plan import Plan
from testbed.plan.recovery import Checkpoints, Failure, MemoryCheckpoints, Recovery, drawn_failures
from testbed.plan.state_exchange import StateMessage, neighbours, restoring, saving, state_traffic
from testbed.planning import file
from testbed.planning.resolve import with_shaper
from testbed.spec.workload import load_workload

ROOT = Path(__file__).parents[2]
TRAIN, SAVE, RESTART = Spending
MEMORY, DISK = KeptIn


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (Mesh(1, 4, 1), (1, 2, 3, 0)),
        (Mesh(3, 2, 1), (2, 3, 4, 5, 0, 1)),
        (Mesh(2, 1, 2, first_rank=5), (2, 3, 0, 1)),
        (Mesh(1, 2, 2), (2, 3, 0, 1)),
        (Mesh(1, 1, 3), (1, 2, 0)),
    ],
)
def test_every_rank_has_a_neighbour_of_its_own(mesh: Mesh, expected: tuple[int, ...]) -> None:
    assert neighbours(mesh) == expected
    assert sorted(expected) == list(range(mesh.size)), "no two have the same"


def test_what_is_lost_comes_from_who_has_it_and_both_copies_are_there_again() -> None:
    mesh, sizes = Mesh(1, 5, 1), (10, 11, 12, 13, 14)
    assert restoring(mesh, sizes, {2}) == (StateMessage(2, 3, 2, 12), StateMessage(1, 1, 2, 11))
    assert restoring(mesh, sizes, {0, 1}) is None
    assert restoring(mesh, sizes, {4, 0}) is None
    for lost in (pair for count in range(1, 6) for pair in combinations(range(5), count)):
        sent, holders = restoring(mesh, sizes, lost), neighbours(mesh)
        left = {(rank, holder) for rank in range(5) for holder in (rank, holders[rank]) if holder not in lost}
        if sent is None:
            assert {whose for whose, _ in left} != set(range(5))
        else:
            assert all((one.whose, one.source) in left for one in sent)
            assert left | {(one.whose, one.target) for one in sent} == {
                (r, h) for r in range(5) for h in (r, holders[r])
            }


def keeping(ranks: int, send_s: float = 0.25, again_s: float = 0.5) -> Keeping:
    mesh = Mesh(1, ranks, 1)

    def again(lost: frozenset[int]) -> float | None:
        return None if restoring(mesh, (1,) * ranks, lost) is None else again_s * bool(lost)

    return Keeping(lambda failure: frozenset(() if failure.rank is None else (failure.rank,)), send_s, again)


def spans(*failures: tuple[int, float], disk: int | None = None) -> list[Span]:
    checkpoints = Checkpoints(2, 0.5, 3.0, MemoryCheckpoints(disk, 1.0))
    coming = tuple(Failure(rank, at_s) for rank, at_s in failures)
    return foretold(lambda _: 1.0, 7, Recovery(checkpoints, coming), keeping(4))


def test_saving_takes_its_slot_then_the_links_then_the_disk() -> None:
    found = [span for span in spans(disk=4) if span.what is SAVE]
    assert [(span.iteration, span.seconds, span.held) for span in found] == [
        (2, 0.75, (MEMORY,)),
        (4, 1.75, (MEMORY, DISK)),
        (6, 0.75, (MEMORY,)),
    ]
    assert [(span.ahead_s, span.disk_s) for span in found] == [(0.5, 0.0), (0.5, 1.0), (0.5, 0.0)]


Restart = tuple[int, tuple[KeptIn, ...], float, set[int]]


def restarts(*failures: tuple[int, float], disk: int | None = None) -> list[Restart]:
    found = [span for span in spans(*failures, disk=disk) if span.what is RESTART]
    return [(span.iteration, span.held, round(span.seconds, 9), set(span.lost)) for span in found]


def test_before_the_first_checkpoint_the_beginning_is_all_there_is() -> None:
    assert restarts((1, 1.5)) == [(0, (DISK,), 3.0, {1})]


def test_one_failure_costs_the_links_and_goes_on_from_memory() -> None:
    assert restarts((1, 3.0)) == [(2, (MEMORY,), 3.5, {1})]


def test_both_holders_lost_falls_back_to_disk_or_to_the_beginning() -> None:
    # rank 2 keeps the state of rank 1; rank 3 does not
    assert restarts((1, 3.0), (3, 4.0)) == [(2, (MEMORY,), 1.0, {1}), (2, (MEMORY,), 3.5, {1, 3})]
    assert restarts((1, 3.0), (2, 4.0)) == [(2, (MEMORY,), 1.0, {1}), (0, (DISK,), 3.0, {1, 2})]
    assert restarts((1, 8.0), (2, 9.0), disk=4)[-1] == (4, (DISK,), 3.0, {1, 2})
    # behind that nothing is in memory until it is saved there again
    assert restarts((1, 3.0), (2, 4.0), (3, 7.5))[-1] == (0, (DISK,), 3.0, {3})
    assert restarts((1, 3.0), (2, 4.0), (3, 10.0))[-1] == (2, (MEMORY,), 3.5, {3})


def test_a_restored_state_is_on_two_nodes_again() -> None:
    assert restarts((1, 3.0), (2, 7.0)) == [(2, (MEMORY,), 3.5, {1}), (2, (MEMORY,), 3.5, {2})]


def cut(at_s: float, cut_s: float) -> Failure:
    return Failure(None, at_s, "oslo", cut_s)


def restarts_of(*failures: Failure, notice_s: float = 1.0) -> list[Restart]:
    checkpoints = Checkpoints(2, 0.5, 3.0, MemoryCheckpoints(), notice_s)
    of_four = keeping(4)
    kept = of_four._replace(ranks_of=lambda one: frozenset((0, 1)) if one.place else of_four.ranks_of(one))
    found = foretold(lambda _: 1.0, 7, Recovery(checkpoints, failures), kept)
    return [
        (span.iteration, span.held, round(span.seconds, 9), set(span.lost)) for span in found if span.what is RESTART
    ]


def test_who_is_cut_off_is_waited_for_and_keeps_its_memory() -> None:
    # nothing is lost: nothing is sent again
    assert restarts_of(cut(3.0, 5.0)) == [(2, (MEMORY,), 5.0 + 3.0, set())]
    assert restarts_of(cut(3.0, 0.2), notice_s=2.0)[0][2] == 2.0 + 3.0, "it is noticed later than it is over"


def test_a_failure_while_a_datacenter_is_cut_off_still_waits_for_it() -> None:
    found = restarts_of(cut(3.0, 5.0), Failure(1, 4.0))
    assert found == [(2, (MEMORY,), 1.0, set()), (2, (MEMORY,), 4.0 + 3.0 + 0.5, {1})]
    found = restarts_of(Failure(1, 3.0), cut(4.0, 6.0))
    assert found[-1] == (2, (MEMORY,), 6.0 + 3.0 + 0.5, {1}), "the restart under way waits, too"


def brute_share(rings: list[int], again: float, trainings: int) -> float:
    draw, first = random.Random("both"), 0
    holder: dict[int, int] = {}
    for size in rings:
        holder |= {first + place: first + (place + 1) % size for place in range(size)}
        first += size
    fatal = 0
    for _ in range(trainings):
        lost = {draw.randrange(first)}
        while draw.random() < again:
            lost.add(draw.randrange(first))
            if any(holder[rank] in lost for rank in lost):
                fatal += 1
                break
    return fatal / trainings


@pytest.mark.parametrize("rings", [[2], [4], [5], [2, 2, 2], [3, 3], [8, 8]])
def test_the_share_that_loses_both_holders_is_what_comes_out_of_drawing(rings: list[int]) -> None:
    # of failures so near each other that chains of several count: restart 1.2 times the mean time between them
    share, drawn = both_lost_share(rings, 1.2, 1.0), brute_share(rings, 1 - math.exp(-1.2), 10_000)
    assert share == pytest.approx(drawn, abs=4 * (0.25 / 10_000) ** 0.5)
    ranks, pairs = sum(rings), 1 if rings[0] == 2 else 2
    assert both_lost_share(rings, 1e-6, 1.0) == pytest.approx(1e-6 * pairs / ranks, rel=1e-5)


def test_without_both_lost_it_is_dalys_formula_and_with_all_lost_that_of_disk_alone() -> None:
    without = expected_goodput_in_memory(5, 0.2, 2, 60, per_disk=4, disk_save_s=0, both_lost=0)
    assert without == pytest.approx(expected_goodput(5, 0.2, 2, 60), rel=1e-12)
    always = expected_goodput_in_memory(5, 0.0, 2, 60, per_disk=4, disk_save_s=0.7, both_lost=1)
    assert always == pytest.approx(expected_goodput(20, 0.7, 2, 60), rel=1e-12)


@pytest.mark.parametrize(("ranks", "mtbf_s"), [(2, 15.0), (6, 12.0)])
def test_many_trainings_have_the_goodput_of_the_formula(ranks: int, mtbf_s: float) -> None:
    checkpoints = Checkpoints(4, 0.1, 4.0, MemoryCheckpoints(24, 0.5))
    kept = keeping(ranks, 0.05, 0.2)
    kept_s = total_s = 0.0
    for seed in range(30):
        failures = tuple(drawn_failures(mtbf_s, 20_000, ranks, seed))
        shares = shares_of(foretold(lambda _: 0.5, 2000, Recovery(checkpoints, failures), kept))
        kept_s, total_s = kept_s + shares.kept_s, total_s + shares.total_s
    lost = both_lost_share([ranks], 4.2, mtbf_s)
    expected = expected_goodput_in_memory(2.0, 0.15, 4.2, mtbf_s, per_disk=6, disk_save_s=0.5, both_lost=lost)
    assert kept_s / total_s == pytest.approx(expected, rel=0.01)
    assert expected < 0.97 * expected_goodput(2.0, 0.15, 4.2, mtbf_s), "to lose both holders matters here"


def test_options_are_read() -> None:
    assert read_checkpoints("every=5,to=neighbour") == Checkpoints(5, 0, 2, MemoryCheckpoints())
    text = "every=5,to=neighbour,save=10 ms,disk=20,disk-save=1.5 s,state=2 MB"
    assert read_checkpoints(text) == Checkpoints(5, 0.01, 2, MemoryCheckpoints(20, 1.5, 2_000_000))
    assert read_failure("node oslo/1 at 3.2 s") == Failure(None, 3.2, "oslo/1")
    assert read_failure("datacenter oslo cut off at 3 s for 500 ms") == Failure(None, 3.0, "oslo", 0.5)
    assert read_checkpoints("notice=300 ms") == Checkpoints(10, 0, 2, None, 0.3)
    assert read_failure("datacenter oslo at 60 s") == Failure(None, 60.0, "oslo")


def planned(tmp_path: Path, *words: str) -> Plan:
    place = tmp_path / "plan.json"
    done = run_testbed("plan", "two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", *words, "-o", place)
    assert done.returncode == 0, done.stderr
    return file.read(place)


def test_a_plan_keeps_what_is_asked_for_and_a_place_stands_for_its_ranks(tmp_path: Path) -> None:
    failing = ("--failure", "datacenter paris at 2 s", "--chaos", "mtbf=3 s,seed=4,of=nodes")
    plan = planned(tmp_path, "--checkpoint", "every=2,to=neighbour,disk=6", *failing, "--iterations", "12")
    assert plan.recovery is not None
    assert plan.recovery.checkpoints is not None
    assert plan.recovery.checkpoints.memory == MemoryCheckpoints(6)
    ranks_of = keeping_of(plan, plan.cases[0]).ranks_of
    assert ranks_of(Failure(None, 2.0, "paris")) == {0, 1}
    assert all(len(ranks_of(failure)) == 1 for failure in plan.recovery.failures if failure.place != "paris")
    assert len({failure.place for failure in plan.recovery.failures}) > 2
    assert file.from_json(file.to_json(plan), "again") == plan


@pytest.mark.parametrize("option", [("--checkpoint", "to=neighbour"), ("--elastic", "restart=3 s")])
def test_states_of_a_model_that_does_not_say_what_its_stages_have_are_refused(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    """An equal share of all parameters is a guess, which a state may be larger than while it is trained."""
    text = (ROOT / "examples/my_model.py").read_text(encoding="utf-8")
    (tmp_path / "guessing.py").write_text(text.replace("def stage_parameter_count(", "def unsaid("))
    parallel = (
        "--set",
        "parallelism.data=2",
        "--set",
        "data_parallel.sharding=none",
        "--set",
        "parallelism.pipeline=2",
    )
    for model, code in ((tmp_path / "guessing.py", 2), (ROOT / "examples/my_model.py", 0)):
        words = (
            "two-dc-longhaul",
            "tiny-gpt-pp4",
            "--schedule",
            "1f1b",
            *parallel,
            *option,
            "--failure",
            "rank 1 at 1 s",
        )
        said = ("--set", f"model={{kind: {model}:Mlp, layers: 4}}", "-o", tmp_path / "plan.json")
        done = run_testbed("plan", *words, *said)
        assert done.returncode == code, done.stderr
        assert ("a model with stage_parameter_count" in " ".join(done.stderr.split())) == (code == 2)


def test_the_example_says_what_its_layers_have() -> None:
    model = load_workload(ROOT / "examples/my_job.yaml").model
    for index in range(model.layers):
        real = sum(parameter.numel() for parameter in model.layer(index).parameters())  # type: ignore[attr-defined]
        assert model.stage_parameter_count(index, model.layers) == real
    assert model.parameter_count() == sum(model.stage_parameter_count(stage, 3) for stage in range(3))


def test_datacenters_are_cut_off_by_chance(tmp_path: Path) -> None:
    words = ("--checkpoint", "every=2", "--chaos", "mtbf=2 s,seed=4,of=cuts,for=500 ms", "--iterations", "12")
    plan = planned(tmp_path, *words)
    assert plan.recovery is not None
    assert {(failure.place, failure.cut_s) for failure in plan.recovery.failures} == {("paris", 0.5), ("warsaw", 0.5)}
    replicas = ("parallelism.data=2", "parallelism.pipeline=2", "data_parallel.sharding=none")
    done = run_testbed(
        "plan",
        "two-dc-longhaul",
        "tiny-gpt-pp4",
        *(word for one in replicas for word in ("--set", one)),
        "--schedule",
        "1f1b",
        "--elastic",
        "restart=1 s",
        *words[2:],
    )
    assert done.returncode == 2
    assert "none that is cut off" in " ".join(done.stderr.split())


def test_a_plan_keeps_who_is_cut_off_and_when_it_is_noticed(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--checkpoint", "notice=400 ms", "--failure", "datacenter paris cut off at 2 s for 3 s")
    assert plan.recovery is not None
    assert plan.recovery.checkpoints is not None
    assert (plan.recovery.checkpoints.notice_s, plan.recovery.failures) == (0.4, (Failure(None, 2.0, "paris", 3.0),))
    assert file.from_json(file.to_json(plan), "again") == plan
    assert links_change(plan)
    with pytest.raises(BadInput, match="relay beside --failure"):
        with_shaper(plan, "netem")


def test_states_take_what_their_bytes_take_on_the_slowest_link_that_they_share(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--checkpoint", "every=2,to=neighbour,state=4 MB")
    case, sizes = plan.cases[0], (4_000_000,) * 4
    messages = saving(plan.jobs[0].mesh, sizes)
    traffic = state_traffic(plan, case, messages)
    there, back = plan.network.directions
    # rank 1 sends to rank 2 over the link, and rank 3 to rank 0 back
    assert [one.wire_bytes for one in traffic] == pytest.approx([4e6, 4e6], rel=0.02)
    assert exchange_s(plan, case, messages) == pytest.approx(8 * 4e6 / there.rate_bps + there.delay_s, rel=0.02)
    faster = replace(plan.network, directions=tuple(one._replace(rate_bps=2 * one.rate_bps) for one in (there, back)))
    assert exchange_s(replace(plan, network=faster), case, messages) < exchange_s(plan, case, messages)
    again = keeping_of(plan, case).send_again_s(frozenset((2,)))
    assert again == pytest.approx(8 * 4e6 / there.rate_bps + there.delay_s, rel=0.02), "only one of the two crosses it"
    assert keeping_of(plan, case).send_again_s(frozenset((1, 2))) is None
