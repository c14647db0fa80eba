"""The picture of a network: arrows pass the boxes of other places, parallel links have their names."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli import app
from testbed.routing.curves import arrows, hides
from testbed.spec.topology import Direction

WORKLOAD = Path(__file__).parents[2] / "workloads/tiny-gpt-pp4.yaml"
ROW = {name: ((number + 0.5) / 3, 0.7) for number, name in enumerate(("s0", "s1", "s2"))}
HALF = dict.fromkeys(ROW, 0.07)


def link(name: str, source: str, target: str) -> list[Direction]:
    ends = ((source, target), (target, source))
    return [Direction(name, a, b, 1e-3, 1e9, 0.0, 0.0, 0.0) for a, b in ends]


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_arrows_are_clear_of_boxes_and_of_each_other(parallel: int) -> None:
    directions = [one for number in range(parallel) for one in link(f"l{number}", "s0", "s2")]
    found = arrows(directions, ROW, HALF)
    assert hides(ROW, ("s0", "s2"), {"s1": HALF["s1"]}, 0.07)  # the least bend would not do
    for one, way in zip(directions, found, strict=True):
        assert not hides(ROW, (one.source, one.target), {"s1": HALF["s1"]}, way.bend)
    for side in (found[::2], found[1::2]):
        assert len({round(way.bend, 6) for way in side}) == parallel
        assert len({way.label_at for way in side}) == parallel


def test_links_that_are_alone_between_their_ends_are_not_labelled() -> None:
    directions = [*link("a", "s0", "s1"), *link("b", "s0", "s1"), *link("c", "s1", "s2")]
    assert [way.label for way in arrows(directions, ROW, HALF)] == ["a", "a", "b", "b", "", ""]


def test_the_picture_names_parallel_links(tmp_path: Path) -> None:
    names = [f"{leaf}{spine}{number}" for leaf, spine, number in product("xy", "uv", "12")]
    topology = {
        "name": "t",
        "datacenters": {"x": {"nodes": 2}, "y": {"nodes": 2}, "u": {"nodes": 0}, "v": {"nodes": 0}},
        "links": [{"name": name, "between": [name[0], name[1]], "delay": "1 ms", "rate": "1 Gbit/s"} for name in names],
    }
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(topology))
    words = ["route", str(tmp_path / "t.yaml"), str(WORKLOAD), "--policy", "shortest", "-q"]
    done = CliRunner().invoke(app, [*words, "--picture", str(tmp_path / "p.svg")])
    assert done.exit_code == 0, done.output
    said = set(re.findall(r"<text [^>]*>([^<]*)</text>", (tmp_path / "p.svg").read_text()))
    assert set(names) <= said
