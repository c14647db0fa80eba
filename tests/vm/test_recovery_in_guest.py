"""Workers that really fail on the virtual clock, in an iteration, while saving and while restarting: what is trained is
what one process trains, and the time goes where it was foretold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from one_boot import MARKS, Asked, Measured, planned

from testbed.goodput.recovering_plan import spans_of_case
from testbed.goodput.spans import Spending
from testbed.thresholds import MODEL_SHARE

pytestmark = MARKS

NETWORK, JOB = "two-dc-longhaul", "tiny-gpt-pp4"
CUT = "datacenter paris cut off at {} for 2 s"
REPLICAS = ("parallelism.data=2", "parallelism.pipeline=2", "microbatches=5", "receives=late")
TENSOR = ("parallelism.tensor=2", "parallelism.pipeline=2", "microbatches=3")


def words(
    *failures: str, settings: tuple[str, ...] = ("microbatches=4",), save: str = "100 ms", to: str = "disk"
) -> list[str]:
    found = ["--schedule", "zb-h1", "--iterations", "5", "--set", "warmup=1"]
    found += ["--checkpoint", f"every=2,save={save},restart=3 s,to={to}"]
    found += [word for setting in settings for word in ("--set", setting)]
    return found + [word for failure in failures for word in ("--failure", failure)]


def elastic(
    options: str, *failures: str, settings: tuple[str, ...], sharding: str = "none", restart: str = "4 s"
) -> list[str]:
    found = ["--schedule", "1f1b", "--iterations", "6", "--set", "warmup=1", "--elastic", f"restart={restart}{options}"]
    found += [word for one in (*settings, f"data_parallel.sharding={sharding}") for word in ("--set", one)]
    return found + [word for failure in failures for word in ("--failure", failure)]


FIRST_APART = "[paris/0, warsaw/0, warsaw/1, warsaw/2]"
ELSEWHERE = "[[warsaw/1, paris/1]]"
"""The second replica, so that states cross the link."""
ELASTIC = ["down to one", "comes back", "shards", "shards while copied"]
SHARDS = ["shards", "shards while copied"]
THREE = (
    *("parallelism.data=3", "parallelism.pipeline=2", "microbatches=4", "streams=2", "model.d_model=24"),
    "data_parallel={algorithm: hierarchical, chunks: 3, replicas: [[warsaw/2, paris/2], [paris/1, warsaw/1]]}",
)
"""Copies of shards cross the link, and what is cut anew does."""
WIDE: dict[str, Any] = {"settings": ("microbatches=4", "model={kind: linear, layers: 4, d_model: 64, sequence: 8}")}
"""Its state follows from the model, and is more than 100 kB."""
NAMES = ["pipeline", "replicas", "tensor", "while saving"]
OF_MEMORY = [
    "neighbour",
    "streams",
    "kept by replicas",
    "a datacenter",
    "both holders",
    "while sending",
    "cut off",
    "cut off while sending",
]


def while_copied(place: Path) -> str:
    """The second copies are broken off when half of their time is over."""
    plan = planned(place, NETWORK, JOB, *elastic(",every=2", settings=THREE, sharding="zero-1"))
    _, second, *_ = (span for span in spans_of_case(plan, plan.cases[0]) if span.what is Spending.SAVE)
    return f"rank 2 at {(second.begin_s + second.end_s) / 2:.6f} s"


def asked(place: Path) -> dict[str, Asked]:
    return {
        "pipeline": Asked(planned(place, NETWORK, JOB, *words("rank 2 at 1.0 s", "rank 0 at 1.9 s"))),
        "replicas": Asked(planned(place, NETWORK, JOB, *words("rank 3 at 1.7 s", settings=REPLICAS))),
        "tensor": Asked(planned(place, NETWORK, JOB, *words("rank 1 at 1.3 s", settings=TENSOR))),
        # the first checkpoint is never whole: everything is trained again, long before its slot would be over
        "while saving": Asked(planned(place, NETWORK, JOB, *words("rank 1 at 1.2 s", save="5 s"))),
        # a restart has two states cross one direction at once, whose queue has no room for them
        "overflowing": Asked(
            planned(
                place,
                NETWORK,
                JOB,
                *words(
                    "rank 0 at 1.7 s",
                    settings=("microbatches=4", "message=90 kB", f"placement={FIRST_APART}", "links.0.queue=3 MB"),
                    to="neighbour,state=2 MB",
                ),
            )
        ),
        "neighbour": Asked(
            planned(place, NETWORK, JOB, *words("rank 2 at 1.5 s", to="neighbour", **WIDE)), light=False
        ),
        "streams": Asked(
            planned(
                place,
                NETWORK,
                JOB,
                *words("node paris/1 at 1.7 s", settings=(*TENSOR, "streams=3"), to="neighbour,state=1600 kB"),
            )
        ),
        # each is kept in its own datacenter: no link carries anything
        "kept by replicas": Asked(
            planned(place, NETWORK, JOB, *words("rank 3 at 1.7 s", settings=REPLICAS, to="neighbour"))
        ),
        # rank 1 is kept in the other datacenter, and rank 0 in the one that is lost: the disk has both
        "a datacenter": Asked(
            planned(
                place,
                NETWORK,
                JOB,
                *words(
                    "rank 1 at 2.4 s", "datacenter paris at 5.9 s", to="neighbour,disk=4,disk-save=200 ms,state=2 MB"
                ),
            )
        ),
        # the other one's neighbour fails while its memory is not there again: everything is trained again
        "both holders": Asked(
            planned(place, NETWORK, JOB, *words("rank 1 at 1.5 s", "rank 2 at 2.5 s", to="neighbour", **WIDE)),
            light=False,
        ),
        # the first checkpoint is whole, the second one is broken off while states are on the link
        "while sending": Asked(
            planned(place, NETWORK, JOB, *words("rank 0 at 1.7 s", to="neighbour,state=10 MB", save="40 ms"))
        ),
        # rank 3 in the second iteration, the node while the others restart: the memory of one is left
        "down to one": Asked(
            planned(
                place,
                NETWORK,
                JOB,
                *elastic(
                    "",
                    "rank 3 at 0.7 s",
                    "node paris/0 at 2 s",
                    settings=("parallelism.data=3", "parallelism.pipeline=2", "microbatches=4", "receives=late"),
                ),
            )
        ),
        "comes back": Asked(
            planned(
                place,
                NETWORK,
                JOB,
                *elastic(
                    ",repair=1 s",
                    "rank 1 at 0.9 s",
                    settings=(*REPLICAS, "streams=2", f"data_parallel.replicas={ELSEWHERE}"),
                ),
            )
        ),
        # rank 3 in the fourth iteration, the copies of two ahead of it; the others go on from there until it is back
        "shards": Asked(
            planned(
                place,
                NETWORK,
                JOB,
                *elastic(",repair=3 s,every=2", "rank 3 at 1.5 s", settings=THREE, sharding="zero-1"),
            )
        ),
        "shards while copied": Asked(
            planned(
                place,
                NETWORK,
                JOB,
                *elastic(",every=2", while_copied(place), "node paris/0 at 7 s", settings=THREE, sharding="zero-1"),
            )
        ),
        "too short": Asked(
            planned(place, NETWORK, JOB, *elastic("", "rank 1 at 0.9 s", settings=REPLICAS, restart="100 ms")),
            quiet=False,
        ),
        "cut off": Asked(
            planned(place, NETWORK, JOB, *words(CUT.format("1.5 s"), to="neighbour,notice=400 ms", **WIDE)),
            shaper="relay",
            light=False,
        ),
        "cut off while sending": Asked(
            planned(
                place,
                NETWORK,
                JOB,
                *words(CUT.format("1.7 s"), to="neighbour,state=10 MB,notice=2500 ms", save="40 ms"),
            ),
            shaper="relay",
        ),
    }


@pytest.mark.parametrize("name", [*NAMES, *OF_MEMORY, *ELASTIC])
def test_what_is_kept_is_trained_as_by_one_process_and_as_predicted(
    measured: Mapping[str, Measured], name: str
) -> None:
    (row,) = measured[name].document["schedules"]
    assert row["trusted"], row["reasons"]
    assert abs(row["error"]) <= MODEL_SHARE.value
    against_one = [check for check in row["checks"] if check["question"].endswith(("off one process's", "one by one"))]
    assert against_one
    assert all(check["ok"] for check in against_one)


@pytest.mark.parametrize("name", [*NAMES, *OF_MEMORY, *ELASTIC])
def test_time_goes_where_it_was_foretold(measured: Mapping[str, Measured], name: str) -> None:
    plan, (entry,) = measured[name].plan, measured[name].document["goodput"]
    expected = spans_of_case(plan, plan.cases[0])
    whole = [span for span in expected if span.what is not Spending.RESTART or span.failure is None]
    assert [(one["what"], one["iteration"]) for one in entry["spans"]] == [(s.what.value, s.iteration) for s in whole]
    assert entry["failures"] == len(plan.recovery.failures) > 0  # type: ignore[union-attr]
    assert entry["measured"]["goodput"] == pytest.approx(entry["predicted"]["goodput"], rel=MODEL_SHARE.value)
    assert entry["measured"]["restarting_s"] == pytest.approx(entry["predicted"]["restarting_s"], abs=1e-4)


def test_a_restart_that_does_not_fit_its_slot_is_named(measured: Mapping[str, Measured]) -> None:
    run = measured["too short"]
    (row,), (entry,) = run.document["schedules"], run.document["goodput"]
    assert "to connect: restart=100 ms may be too short" in run.said, "when workers had connected for the first time"
    assert abs(row["error"]) <= MODEL_SHARE.value, "of the iterations: the restart is another matter"
    (reason,) = row["reasons"]
    assert reason.startswith("1 restart was ")
    assert "restart= is too short" in reason
    assert entry["measured"]["goodput"] < entry["predicted"]["goodput"] * (1 - MODEL_SHARE.value)


def test_what_states_took_over_links_is_part_of_the_verdict(measured: Mapping[str, Measured]) -> None:
    """Nothing else tells of it: what was lost in a restart is left out of the counters."""
    (row,), (entry,) = (measured["overflowing"].document[name] for name in ("schedules", "goodput"))
    assert abs(row["error"]) <= MODEL_SHARE.value, "of the iterations"
    assert entry["measured"]["goodput"] < entry["predicted"]["goodput"] * (1 - MODEL_SHARE.value)
    (reason,) = row["reasons"]
    assert reason.startswith("states took ")
    assert "longer over links than foretold" in reason


def failed_in(entry: Mapping[str, Any]) -> list[str]:
    return [span["what"] for span in entry["spans"] if "failed_rank" in span]


def test_failures_fall_where_they_should(measured: Mapping[str, Measured]) -> None:
    found = {name: failed_in(measured[name].document["goodput"][0]) for name in NAMES}
    assert found == {"pipeline": ["train"], "replicas": ["train"], "tensor": ["train"], "while saving": ["save"]}
    (entry,) = measured["pipeline"].document["goodput"]
    assert entry["failures"] == 2, "the other one came while it restarted, which then took longer"
    assert entry["measured"]["restarting_s"] > 3.5


def restarted(measured: Mapping[str, Measured], name: str) -> list[tuple[int, list[str]]]:
    (entry,) = measured[name].document["goodput"]
    return [(span["iteration"], span["held"]) for span in entry["spans"] if span["what"] == "restart"]


def test_a_restart_goes_on_from_what_is_left(measured: Mapping[str, Measured]) -> None:
    assert {name: restarted(measured, name) for name in OF_MEMORY} == {
        "neighbour": [(2, ["memory"])],
        "streams": [(4, ["memory"])],
        "kept by replicas": [(2, ["memory"])],
        "a datacenter": [(4, ["memory"]), (4, ["disk"])],
        "both holders": [(0, ["disk"])],
        "while sending": [(2, ["memory"])],
        "cut off": [(2, ["memory"])],
        "cut off while sending": [(2, ["memory"])],
    }
    assert failed_in(measured["while sending"].document["goodput"][0]) == ["save"]


@pytest.mark.parametrize("name", OF_MEMORY)
def test_states_go_over_the_links_byte_by_byte_as_planned(measured: Mapping[str, Measured], name: str) -> None:
    (entry,) = measured[name].document["goodput"]
    rows = entry.get("states", [])
    nothing_lost = {"both holders": {"save"}, "cut off": {"save"}, "cut off while sending": {"save"}}
    crossed = (nothing_lost | {"kept by replicas": set()}).get(name, {"save", "restore"})
    assert {row["what"] for row in rows} == crossed
    assert [row["wire_bytes"] for row in rows] == [row["planned_bytes"] for row in rows]
    assert max((row["wire_bytes"] for row in rows), default=1e5) >= 1e5
    expected = spans_of_case(measured[name].plan, measured[name].plan.cases[0])
    saves = {s.iteration: s.seconds for s in expected if s.what is Spending.SAVE and s.failure is None}
    taken = {s["iteration"]: s["end_s"] - s["begin_s"] for s in entry["spans"] if s["what"] == "save"}
    for iteration, seconds in saves.items():
        assert taken[iteration] == pytest.approx(seconds, rel=MODEL_SHARE.value)


def test_who_is_cut_off_is_so_on_time_and_is_waited_for(measured: Mapping[str, Measured]) -> None:
    taken = {}
    for name in ("cut off", "cut off while sending"):
        (entry,) = measured[name].document["goodput"]
        assert entry["cuts_late_s"] < 1e-4
        taken[name] = entry["measured"]["restarting_s"]
    assert taken["cut off"] == pytest.approx(2.0 + 3.0, abs=1e-3), "until it is back, then the slot"
    assert taken["cut off while sending"] == pytest.approx(2.5 + 3.0, abs=1e-3), "it is noticed later"


def sets(measured: Mapping[str, Measured], name: str) -> list[tuple[str, int, list[int]]]:
    """What was done, with which replicas, without repetitions."""
    (entry,) = measured[name].document["goodput"]
    found = [(span["what"], span["iteration"], span["replicas"]) for span in entry["spans"]]
    return [one for place, one in enumerate(found) if place == 0 or one[::2] != found[place - 1][::2]]


def test_a_job_goes_on_with_the_replicas_that_are_left(measured: Mapping[str, Measured]) -> None:
    assert sets(measured, "down to one") == [("train", 0, [0, 1, 2]), ("restart", 1, [2]), ("train", 1, [2])]
    (entry,) = measured["down to one"].document["goodput"]
    one_each = 4 * measured["down to one"].plan.jobs[0].workload.microbatch_size
    assert entry["measured"]["samples"] == entry["predicted"]["samples"] == (3 + 6) * one_each
    assert entry["measured"]["samples_per_s"] == pytest.approx(entry["predicted"]["samples_per_s"], rel=1e-4)
    assert "states" not in entry


def test_a_replica_that_is_back_gets_its_state_byte_by_byte_as_planned(measured: Mapping[str, Measured]) -> None:
    assert [one for one in sets(measured, "comes back") if one[0] == "restart"] == [
        ("restart", 1, [1]),
        ("restart", 2, [0, 1]),
    ]
    (entry,) = measured["comes back"].document["goodput"]
    rows = entry["states"]
    assert {(row["what"], row["times"]) for row in rows} == {("join", 1)}
    assert [row["wire_bytes"] for row in rows] == [row["planned_bytes"] for row in rows]


def test_shards_are_copied_and_cut_anew_byte_by_byte_as_planned(measured: Mapping[str, Measured]) -> None:
    found = {name: [one for one in sets(measured, name) if one[0] != "train"] for name in SHARDS}
    assert found == {
        "shards": [
            ("save", 2, [0, 1, 2]),
            ("restart", 2, [0, 2]),
            ("save", 4, [0, 2]),
            ("restart", 4, [0, 1, 2]),
            ("save", 6, [0, 1, 2]),
        ],
        "shards while copied": [
            ("save", 2, [0, 1, 2]),
            ("save", 4, [0, 1, 2]),
            ("restart", 2, [0, 2]),
            ("save", 4, [0, 2]),
            ("restart", 4, [2]),
            ("save", 6, [2]),
        ],
    }
    assert failed_in(measured["shards while copied"].document["goodput"][0])[0] == "save"
    for name in SHARDS:
        (entry,) = measured[name].document["goodput"]
        rows = entry["states"]
        # those that are left behind the broken copies are in one place
        assert {row["what"] for row in rows} == {"save"} | ({"cut anew"} if name == "shards" else set())
        assert [row["wire_bytes"] for row in rows] == [row["planned_bytes"] for row in rows]
        expected = spans_of_case(measured[name].plan, measured[name].plan.cases[0])
        took_s = [span["end_s"] - span["begin_s"] for span in entry["spans"] if span["what"] == "save"]
        foretold_s = [span.seconds for span in expected if span.what is Spending.SAVE]
        assert took_s == pytest.approx(foretold_s, rel=MODEL_SHARE.value)
        assert max(took_s) > 1e-3
