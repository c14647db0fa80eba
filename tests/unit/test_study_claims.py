"""What a study says beside its tables: times that a paper has published, and claims that are judged."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from in_process import run_testbed
from study_files import ROOT, study_file

from testbed.spec.study import StudyAxis, study_of
from testbed.study import cell_runs, cells, outcomes
from testbed.study.claim_text import parse
from testbed.study.claims import ClaimVerdict, StudyTables

# --- what a paper has published --------------------------------------------------------------------


def with_published(directory: Path, text: str, **fields: Any) -> Path:
    (directory / "times.csv").write_text(text)
    published = {"file": "times.csv", "source": "a paper", "column": "ms", "unit": "ms"} | fields
    over = {
        "m": {"field": "microbatches", "values": [4, 8]},
        "lat": {"field": "links.0.delay", "values": [0, 0.5], "times": "20 ms"},
    }
    claims = ["error to published <= 5 %", "order as published"]
    return study_file(directory, published=published, over=over, schedules=["1f1b", "zb-h1"], claims=claims)


def test_published_times_stand_beside_ours(tmp_path: Path) -> None:
    """At the places that the file names; an axis without a column is the same at all its values."""
    path = with_published(tmp_path, "schedule,m,table,ms\n1f1b,4,5,100.0\n1f1b,8,5,80\n", per="microbatch")
    out = tmp_path / "out"
    done = run_testbed("study", path, "--out", out)
    assert done.returncode == 1, "nothing of ours is as near"
    heading = done.stdout.splitlines()[2:4]
    assert [line.split().count(word) for line, word in zip(heading, ("1f1b", "published"), strict=True)] == [2, 1]
    table = pd.read_parquet(out / "study.parquet")
    known = table[table["published_s"].notna()]
    assert set(known["label"]) == {"1f1b"}
    assert list(known["published_s"]) == pytest.approx([0.4, 0.4, 0.64, 0.64])
    assert list(known["error_to_published"]) == pytest.approx(list(known["predicted_s"] / known["published_s"] - 1))
    assert "1f1b, published" in (out / "plot-m.svg").read_text()


def test_only_cells_of_which_something_is_published(tmp_path: Path) -> None:
    path = with_published(tmp_path, "schedule,lat,m,ms\n1f1b,0.50,8,700\nzb-h1,0,4,300\n", only=True)
    found = cells.cells_of(study_of(path), path)
    assert [(cell.values["m"].number, cell.values["lat"].number) for cell in found] == [(4, 0), (8, 0.5)]
    assert [dict(cell.published) for cell in found] == [pytest.approx({"zb-h1": 0.3}), pytest.approx({"1f1b": 0.7})]
    assert [cell.number for cell in found] == [0, 1]


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        ("schedule,m,s\n1f1b,4,5\n", {}, "a column ms"),
        ("m,ms\n4,5\n", {}, "a column schedule"),
        ("schedule,m,ms\n1f1b,4,soon\n", {}, "line 2, ms"),
        ("schedule,m,ms\n1f1b,4,-5\n", {}, "a time above 0"),
        ("schedule,m,ms\n1f1b,4,5\n1f1b,4,6\n", {}, "line 3"),
        ("schedule,m,ms\n1f1b,5,5\n", {}, "places of this grid"),
        ("schedule,m,ms\n1f1b,4,5\n", {"unit": "Mbit/s"}, "a unit of time"),
        ("schedule,m,ms\n1f1b,4,5\n", {"file": "none.csv"}, "none.csv"),
    ],
)
def test_published_times_that_cannot_be_read_are_one_error(
    tmp_path: Path, text: str, fields: dict[str, Any], said: str
) -> None:
    done = run_testbed("study", with_published(tmp_path, text, **fields), "--out", tmp_path / "out")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_every_published_cell_of_crosspipe_is_in_the_study_of_its_tables() -> None:
    path = ROOT / "studies/crosspipe-tables.yaml"
    found = cells.cells_of(study_of(path, {"over.receives.values": "[early]"}), path)
    known = pd.read_csv(ROOT / "studies/data/crosspipe_tables.csv")
    assert sum(len(cell.published) for cell in found) == len(known) == 140
    (cell,) = (cell for cell in found if [*(v.shown for v in cell.values.values())][:4] == ["4", "3", "2", "2"])
    assert cell.published["UD"] == pytest.approx(0.178 * 32)


# --- claims ----------------------------------------------------------------------------------------

AXES = {
    "lat": StudyAxis(field="links.0.delay", values=["10 ms", "20 ms", "30 ms"]),
    "net": StudyAxis(values={"near": {"message": "1 MB"}, "far": {"message": "2 MB"}}),
}


PUBLISHED_S = {"a": 1.0, "b": 1.4}


def evidence(
    times: dict[tuple[str, str], dict[str, float]], *, failed: str = "", untrusted: Collection[str] = ()
) -> StudyTables:
    """What was measured at (lat, net), by label; those of the `untrusted` labels cannot be trusted."""
    rows, of_cells = [], []
    for number, ((lat, net), taken) in enumerate(times.items()):
        place = {"cell": number, "topology": "t", "workload": "w", "lat": lat, "lat_value": float(lat.split()[0]) / 1e3}
        place |= {"net": net, "net_value": float("nan"), "job": None}
        of_cells.append(place | {"failed": "" if number or not failed else failed, "order_as_predicted": number != 1})
        for label, seconds in taken.items():
            row = {
                "label": label,
                "measured_s": seconds,
                "predicted_s": seconds / 1.0002,
                "trusted": label not in untrusted,
            }
            published_s = PUBLISHED_S.get(label, float("nan"))
            row |= {"published_s": published_s, "error_to_published": seconds / published_s - 1}
            rows.append(
                place | row | {"predicted_low_s": float("nan"), "predicted_high_s": float("nan"), "covered": True}
            )
    return StudyTables(pd.DataFrame(rows), pd.DataFrame(of_cells), AXES, measured=True)


GRID = evidence(
    {
        ("10 ms", "near"): {"a": 1.0, "b": 1.5},
        ("20 ms", "near"): {"a": 1.4, "b": 1.5},
        ("30 ms", "near"): {"a": 1.8, "b": 1.6},
        ("10 ms", "far"): {"a": 1.1, "b": 1.5},
    }
)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("a <= 0.95 * b at lat=20 ms", "holds"),
        ("a ≤ 0.93 × b at lat=20 ms", "fails"),
        ("a < b", "fails"),
        ("a < b at lat=10ms", "holds"),
        ("a < b at lat=0.01 s, net=far", "holds"),
        ("b >= 1.5 s at net=near", "holds"),
        ("b > 1.5 s at net=near", "fails"),
        ("a is fastest at lat=20 ms", "holds"),
        ("b is fastest at lat=30 ms", "holds"),
        ("b is fastest at lat=20 ms", "fails"),
        ("error <= 0.05 %", "holds"),
        ("error < 0.01 %", "fails"),
        ("order as the model's at lat=10 ms", "holds"),
        ("order as predicted", "fails"),
        ("crossing of a and b between 20 ms and 30 ms at net=near", "holds"),
        ("crossing of b and a between 0.022 s and 0.025 s along lat at net=near", "holds"),
        ("crossing of a and b between 20 ms and 23 ms at net=near", "fails"),
        ("crossing of a and b between 20 ms and 30 ms at net=far", "fails"),
        ("a at lat=10 ms <= 0.8 * a at lat=20 ms", "holds"),
        ("a at lat=10 ms <= 0.7 x a at lat=20 ms", "fails"),
        ("a at lat=30 ms, net=near > 1.6 * a at net=far, lat=10 ms", "holds"),
        ("a at lat=10 ms < b at lat=20 ms, net=near", "holds"),
        ("b at lat=10 ms, net=near < b at lat=20 ms", "fails"),
        ("a at net=far <= 1.1 * a at net=near", "holds"),
        ("a at lat=20 ms < 1.45 s", "holds"),
        ("a at lat=30 ms <= a at lat=20 ms, net=far", "undecided"),
        ("error to published <= 80 %", "holds"),
        ("error of a to published <= 10 %", "fails"),
        ("error of a to published <= 11 % at lat=10 ms", "holds"),
        ("error of b <= 0.05 %", "holds"),
        ("order as published at lat=10 ms", "holds"),
        ("order as published", "fails"),
        ("order as published but within 45 %", "undecided"),
    ],
)
def test_claims_are_judged(text: str, verdict: str) -> None:
    judged = parse(text, AXES, ["a", "b"]).judged(GRID)
    assert (judged.verdict, judged.claim) == (verdict, text)
    assert judged.why


def test_where_a_claim_fails_is_named_with_its_topology_where_there_are_several() -> None:
    claim = parse("a < 1 ms at lat=10 ms, net=far", AXES, ["a", "b"])
    assert claim.judged(GRID).why == "a is 1100.000 x 1 ms at lat=10 ms, net=far"
    several = pd.concat([GRID.cells, GRID.cells.assign(topology="other")])
    assert claim.judged(GRID._replace(cells=several)).why == "a is 1100.000 x 1 ms at topology=t, lat=10 ms, net=far"


def test_a_crossing_is_where_lines_meet() -> None:
    judged = parse("crossing of a and b between 20 ms and 30 ms at net=near", AXES, ["a", "b"]).judged(GRID)
    assert "23.33 ms" in judged.why, "0.1 below and 0.2 above: a third of the way"


@pytest.mark.parametrize(
    ("differences", "crosses"),
    [
        ((-0.1, -0.1, -1e-15), None),  # as fast at the end, but for rounding
        ((-0.1, 1e-15, -0.1), None),
        ((1e-15, 0.1, 0.2), None),
        ((-0.1, 0.0, 0.1), "20 ms"),
        ((-0.1, -1e-15, 0.3), "20 ms"),
        ((-0.1, 0.1, 1e-15), "15 ms"),
    ],
)
def test_what_takes_the_same_but_for_rounding_crosses_where_the_other_one_is_faster_behind_it(
    differences: tuple[float, ...], crosses: str | None
) -> None:
    times = {(f"{10 * n} ms", "near"): {"a": 1.0 + more, "b": 1.0} for n, more in enumerate(differences, 1)}
    judged = parse("crossing of a and b between 5 ms and 40 ms", AXES, ["a", "b"]).judged(evidence(times))
    assert judged.why.startswith("they cross nowhere" if crosses is None else f"they cross at lat = {crosses}")


def test_why_an_order_is_undecided_is_said() -> None:
    near = parse("order as published but within 45 %", AXES, ["a", "b"]).judged(GRID)
    assert near.why == "all that is published lies within 45% of each other"
    alone = evidence({("10 ms", "near"): {"a": 1.0}})
    assert parse("order as published", AXES, ["a", "b"]).judged(alone).why == "no two are published"


def test_nothing_is_claimed_of_what_is_missing_or_untrusted() -> None:
    claim = parse("a < b", AXES, ["a", "b"])
    times = {("10 ms", "near"): {"a": 1.0, "b": 1.5}, ("20 ms", "near"): {"a": 1.0, "b": 1.5}}
    assert claim.judged(evidence(times)).verdict is ClaimVerdict.holds
    missing, untrusted = claim.judged(evidence(times, failed="it died")), claim.judged(evidence(times, untrusted="a"))
    assert missing.verdict is untrusted.verdict is ClaimVerdict.undecided
    assert "it died" in missing.why
    assert "trusted" in untrusted.why


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("a < b", "holds"),
        ("a < 1.1 s", "holds"),
        ("c > b", "undecided"),
        ("c > 1.9 s", "undecided"),
        ("a is fastest", "undecided"),
        ("crossing of a and b between 10 ms and 20 ms", "fails"),
        ("order as published", "holds"),
        ("order as the model's at lat=10 ms", "undecided"),
    ],
)
def test_a_schedule_that_cannot_be_trusted_leaves_the_claims_on_others_decided(text: str, verdict: str) -> None:
    times = {("10 ms", "near"): {"a": 1.0, "b": 1.5, "c": 2.0}, ("20 ms", "near"): {"a": 1.0, "b": 1.5, "c": 2.0}}
    judged = parse(text, AXES, ["a", "b", "c"]).judged(evidence(times, untrusted="c"))
    assert judged.verdict == verdict, judged.why


def test_a_claim_that_fails_fails_whoever_is_missing() -> None:
    claim = parse("b < a", AXES, ["a", "b"])
    assert (
        claim.judged(evidence({("10 ms", "near"): {"a": 1.0, "b": 1.5}}, failed="it died")).verdict
        is ClaimVerdict.fails
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a < c", "in place of c"),
        ("1 s < 2 s", "a schedule"),
        ("a < b at lot=3", "did you mean lat"),
        ("crossing of a and b between 30 ms and 20 ms", "the smaller one first"),
        ("crossing of a and b between 1 and 2 along len", "along"),
        ("a beats b", "A <= 0.9"),
        ("a < b at lat=40 ms", "in place of 40 ms"),
        ("a < b at lat=20", "in place of 20"),
        ("a < b at net=nearer", "near, far"),
        ("a at lat=10 ms < b", "the right side too"),
        ("a < 3 km", "a time above 0"),
        ("a < 0 s", "a time above 0"),
        ("a < 0 * b", "a factor above 0"),
        ("a < 1.2.3 * b", "in place of 1.2.3"),
        ("crossing of a and b between 20 km and 30 km along lat", "as lat has them"),
        ("error of c <= 1 %", "in place of c"),
        ("a < b at lat=10 ms, lat=20 ms", "lat once"),
    ],
)
def test_a_claim_that_nobody_understands_says_what_would_be(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text, AXES, ["a", "b"])


def test_a_job_is_no_place_of_a_study_whose_jobs_are_alone() -> None:
    """The table has no job then: the claim spoke of nothing, and was undecided."""
    names = {"topology": ["t"], "workload": ["w"], "job": []}
    with pytest.raises(ValueError, match="one of topology, workload, lat"):
        parse("a < b at job=w", AXES, ["a", "b"], names)


@pytest.mark.parametrize("claim", ["order as published", "error of 1f1b to published <= 5 %"])
def test_a_claim_about_published_times_wants_some(tmp_path: Path, claim: str) -> None:
    done = run_testbed("study", study_file(tmp_path, claims=[claim]), "--out", tmp_path / "out")
    assert done.returncode == 2
    assert f"claims.0: got '{claim}', expected a section `published`" in done.stderr
    assert not (tmp_path / "out").exists()


def test_columns_that_an_axis_cannot_have_are_those_of_the_table() -> None:
    assert {"cell", "label", "measured_s", "reasons"} <= outcomes.RESERVED


@pytest.mark.parametrize(
    ("cells", "at_once", "size"), [(0, 2, 1), (1, 2, 1), (6, 2, 3), (16, 2, 8), (32, 2, 16), (33, 2, 9), (100, 2, 13)]
)
def test_boots_share_cells_evenly(cells: int, at_once: int, size: int) -> None:
    assert cell_runs.in_a_boot(cells, at_once) == size
    assert size <= cell_runs.MOST_IN_A_BOOT
