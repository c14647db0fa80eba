"""The picture of a large trace: boxes that would be too narrow become points in their mean colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_picture import drawn, traced

from testbed.results.merged_lanes import busy_shares, merged
from testbed.results.timeline_picture import Panel
from testbed.trace.tables import KINDS

LARGE = 1024


def test_shares_are_those_of_the_actions_wherever_the_edges_are() -> None:
    trace = traced("zb-h1", 4, 8)
    end_s = float(trace.makespans()[0])
    for spans in (1, 7, 1000):
        edges_s = np.linspace(0.0, 1.25 * end_s, spans + 1)
        for rank in range(4):
            mine = trace.actions[trace.actions["rank"] == rank]
            shares = busy_shares(mine, edges_s)
            assert shares.min() >= 0
            assert shares.max() <= 1 + 1e-9
            assert shares @ np.diff(edges_s) == pytest.approx((mine["end_s"] - mine["start_s"]).sum())


def test_a_span_has_the_mean_colour_of_what_is_in_it() -> None:
    trace = traced("1f1b", 2, 2)
    end_s = float(trace.makespans()[0])
    red, green = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    colours = {
        (rank, rank, code): red if str(kind) == "F" else green for rank in range(2) for code, kind in enumerate(KINDS)
    }
    picture = merged(trace, 2, np.array([0.0, end_s, 2 * end_s]), colours, (0.0, 0.0, 0.0))
    for rank in range(2):
        mine = trace.actions[trace.actions["rank"] == rank]
        forward = np.array([str(KINDS[code]) == "F" for code in mine["kind"]])
        took_s = mine["end_s"] - mine["start_s"]
        expected = [took_s[forward].sum() / end_s, took_s[~forward].sum() / end_s, 0.0]
        assert picture[rank, 0] == pytest.approx(expected)
        assert picture[rank, 1].tolist() == [1.0, 1.0, 1.0]  # nothing is there any more


def test_a_large_trace_is_a_small_file_that_says_that_it_is_merged(tmp_path: Path) -> None:
    large, small = tmp_path / "large.svg", tmp_path / "small.svg"
    drawn(large, Panel("1f1b", [("predicted", traced("1f1b", 4, LARGE))]))
    drawn(small, Panel("1f1b", [("predicted", traced("1f1b"))]))
    assert large.stat().st_size < 300_000
    assert "actions within a point" in large.read_text()
    assert "actions within a point" not in small.read_text()
    assert "<image" not in small.read_text()
