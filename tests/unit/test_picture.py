"""The picture: chunks by shade, everything to read it by on top, pages, and numbers only where they have room."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.model.simulate import simulate
from testbed.pipeline.algorithms import Members, exchange
from testbed.pipeline.collectives import Collective
from testbed.pipeline.problem import uniform
from testbed.results.timeline_picture import Panel, draw
from testbed.schedule.registry import FAMILIES, generate
from testbed.trace.tables import Trace

DIGIT_POINTS = 0.64 * 5.5
"""The width of a digit in the widest of the fonts that the picture names."""


def traced(family: str, ranks: int = 4, microbatches: int = 8) -> Trace:
    placement = FAMILIES[family].stage_to_rank(ranks)
    problem = uniform(
        ranks, microbatches, stage_to_rank=placement, memory=float(2 * microbatches), delay_s=2, cuts=(1,)
    )
    return simulate(problem, generate(family, problem))


def drawn(path: Path, *panels: Panel, ranks: int = 4) -> list[Path]:
    return draw(panels, path, cuts=[1], lanes=[f"{rank} a/{rank}" for rank in range(ranks)], heading="w on t")


def heights(svg: str, text: str) -> list[float]:
    """How far from the top of an SVG its pieces of text that hold `text` stand, in points."""
    return [float(y) for y, said in re.findall(r'<text [^>]* y="([-\d.]+)"[^>]*>([^<]*)</text>', svg) if text in said]


def test_chunks_of_a_rank_have_shades_of_their_own_and_are_in_the_legend(tmp_path: Path) -> None:
    two, one = tmp_path / "two.svg", tmp_path / "one.svg"
    drawn(two, Panel("interleaved-1f1b", [("predicted", traced("interleaved-1f1b"))]))
    drawn(one, Panel("1f1b", [("predicted", traced("1f1b"))]))
    colours = {path: set(re.findall(r"fill: (#[0-9a-f]{6})", path.read_text())) for path in (one, two)}
    assert len(colours[two] - colours[one]) >= 2  # the lighter forward and backward
    assert "chunk 1 of a rank" in two.read_text()
    assert "chunk" not in one.read_text()


def test_legend_and_axis_stand_above_the_first_lane(tmp_path: Path) -> None:
    drawn(tmp_path / "a.svg", *(Panel(name, [("predicted", traced(name))]) for name in ("1f1b", "gpipe")))
    svg = (tmp_path / "a.svg").read_text()
    first_lane = min(heights(svg, "0 a/0"))
    for text in ("w on t", "F  forward", "ms since the start"):
        (height,) = heights(svg, text)
        assert height < first_lane, text


def test_many_schedules_are_pages(tmp_path: Path) -> None:
    trace = traced("1f1b", 16, 1)
    panels = [Panel(f"schedule {n}", [("predicted", trace), ("measured", trace)]) for n in range(5)]
    pages = drawn(tmp_path / "timeline.svg", *panels, ranks=16)
    assert [page.name for page in pages[:2]] == ["timeline.svg", "timeline-2.svg"]
    texts = [page.read_text() for page in pages]
    assert "page 2 of" in texts[1]
    for number in range(5):
        assert sum(f"schedule {number} - measured" in text for text in texts) == 1
    assert len({re.search(r'width="([^"]+)"', text)[1] for text in texts}) == 1  # type: ignore[index]


@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 8), (3, 40), (2, 400)])
def test_numbers_stand_in_their_boxes_or_nowhere(tmp_path: Path, ranks: int, microbatches: int) -> None:
    """Numbers of one lane are further apart than they are wide."""
    trace = traced("1f1b", ranks, microbatches)
    drawn(tmp_path / "a.svg", Panel("1f1b", [("predicted", trace)]), ranks=trace.n_ranks)
    svg = (tmp_path / "a.svg").read_text()
    numbers = re.findall(r'font-size: 5.5px[^>]* x="([-\d.]+)" y="([-\d.]+)"[^>]*>(\d+)<', svg)
    lanes: dict[str, list[tuple[float, str]]] = {}
    for across, down, digits in numbers:
        lanes.setdefault(down, []).append((float(across), digits))
    assert numbers or microbatches == 400
    for lane in lanes.values():
        lane.sort()
        for (left, digits), (right, _) in pairwise(lane):
            assert right - left > len(digits) * DIGIT_POINTS


def test_replicas_stand_apart_and_what_they_exchange_is_drawn(tmp_path: Path) -> None:
    problem = uniform(2, 3, delay_s=2, wire_s=1)
    steps = exchange("ring", Members(("a", "b"), sharded=True)).gather
    ring = Collective(steps, {1: 1.0}, {(0, 1): (0,), (1, 0): (1,)}, kind="all-gather")
    two = replace(problem, pipelines=problem.pipelines * 2, all_gather=(ring, ring))
    drawn(tmp_path / "two.svg", Panel("1f1b", [("predicted", simulate(two, generate("1f1b", problem)))]))
    drawn(tmp_path / "one.svg", Panel("1f1b", [("predicted", simulate(problem, generate("1f1b", problem)))]), ranks=2)
    for said in ("from another replica", "next replica"):
        assert said in (tmp_path / "two.svg").read_text()
        assert said not in (tmp_path / "one.svg").read_text()
