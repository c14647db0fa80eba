"""Links that nobody tuned for, measured on the virtual clock: right ones are found right, wrong ones wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import ExitCode

pytestmark = [pytest.mark.root, pytest.mark.timeout(600), pytest.mark.usefixtures("time_travel_kernel")]

ODD = (
    "{rate: 20 Mbit/s, delay: 0 ms}",
    "{rate: 37 Mbit/s, delay: 7 ms}",
    "{rate: 2 kbit/s, delay: 1 ms}",
    "{rate: 1 Gbit/s, delay: 100 ms, queue: 145 kB}",
    "{rate: 1 Gbit/s, delay: 10 ms, queue: 18028 B}",
    "{rate: 10 Gbit/s, delay: 10 ms, queue: 400 kB}",
    "{rate: 1 Gbit/s, delay: 1 ms, queue: 50 kB, reverse: {rate: 3 Mbit/s, delay: 300 ms}}",
    "{rate: 9.7 Gbit/s, delay: 150 ms, reverse: {rate: 3 Mbit/s, delay: 0 ms}}",
)
JITTERY = (
    "{rate: 13 Mbit/s, delay: 41 ms, jitter: 39.77 ms}",
    "{rate: 50 Mbit/s, delay: 41 ms, jitter: 20 ms, reverse: {jitter: 0 ms, rate: 300 Mbit/s, delay: 2 ms}}",
    "{rate: 1 Gbit/s, delay: 41 ms, jitter: 39 ms, queue: 5 MB}",
)
WRONG = """
from testbed.lab.shaping.relay import RelayShaper


class Wrong(RelayShaper):
    def build(self, links):
        super().build(links)
        self.change(0, rate_bps=1.03 * links[0].forward.asked.rate_bps)
        self.change(2, rate_bps=0.97 * links[1].forward.asked.rate_bps)
        self.change(4, delay_s=1.06 * links[2].forward.asked.delay_s)
        self.change(6, loss=0.01)
"""


def calibrated(place: Path, links: tuple[str, ...], shaper: str, code: ExitCode) -> list[dict[str, Any]]:
    """What `testbed calibrate` found of parallel links, a row for each direction."""
    lines = [f"  - {{between: [a, b], name: link{number}, {link[1:]}" for number, link in enumerate(links)]
    text = "\n".join(["name: odd", "datacenters: {a: {nodes: 1}, b: {nodes: 1}}", "links:", *lines])
    (place / "odd.yaml").write_text(text)
    command = [sys.executable, "-m", "testbed", "calibrate", str(place / "odd.yaml"), "--clock", "virtual", "--json"]
    done = subprocess.run([*command, "--shaper", shaper], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == code, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["links"]
    return found


@pytest.mark.parametrize("shaper", ["netem", "relay"])
def test_right_links_are_found_right_at_once(tmp_path: Path, shaper: str) -> None:
    for link in calibrated(tmp_path, ODD, shaper, ExitCode.OK):
        asked, measured = link["asked"], link["measured"]
        assert (link["reasons"], link["attempts"], measured["dropped"]) == ([], 1, 0), link
        assert measured["rate_bps"] == pytest.approx(asked["rate_bps"], rel=2e-4), link
        assert measured["one_way_s"]["median"] == pytest.approx(asked["delay_s"], abs=1e-7), link
        assert measured["rtt_s"]["median"] == pytest.approx(asked["rtt_s"], abs=1e-7), link


@pytest.mark.parametrize("shaper", ["netem", "relay"])
def test_right_links_that_jitter_by_as_much_as_they_take_are_found_right(tmp_path: Path, shaper: str) -> None:
    """What is under way fills the longest of their delays: 13 Mbit/s were measured as 10."""
    for link in calibrated(tmp_path, JITTERY, shaper, ExitCode.OK):
        asked, measured = link["asked"], link["measured"]
        assert (link["reasons"], link["attempts"], measured["dropped"]) == ([], 1, 0), link
        assert measured["rate_bps"] == pytest.approx(asked["rate_bps"], rel=5e-3), link


def test_wrong_links_are_found_wrong(tmp_path: Path) -> None:
    (tmp_path / "shaper.py").write_text(WRONG)
    links = ("{rate: 20 Mbit/s, delay: 0 ms}", "{rate: 20 Mbit/s, delay: 0 ms}", "{rate: 3 Mbit/s, delay: 7 ms}")
    found = calibrated(
        tmp_path, (*links, "{rate: 10 Gbit/s, delay: 1 ms}"), f"{tmp_path / 'shaper.py'}:Wrong", ExitCode.UNTRUSTED
    )
    fast, slow, late, lossy = (link["reasons"] for link in found[::2])
    assert fast == ["rate 20.6 Mbit/s, asked 20 Mbit/s (+3.0 %, allowed ±2 %)"]
    assert slow == ["rate 19.4 Mbit/s, asked 20 Mbit/s (-3.0 %, allowed ±2 %)"]
    assert any("one-way delay median 7.42 ms, asked 7 ms" in reason for reason in late), late
    assert any("packets dropped" in reason for reason in lossy), lossy
    assert [found[1]["reasons"], found[3]["reasons"]] == [[], []]
