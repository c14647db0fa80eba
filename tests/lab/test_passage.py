"""What a passage through the relay takes by itself is taken off its links' delays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from in_sandbox import in_sandbox
from networks import two_datacenters

pytestmark = pytest.mark.root


def facts() -> dict[str, float]:
    from testbed.lab.lab import Lab
    from testbed.lab.shaping.passage import MOST_S, added_s, passage_s

    found = {"most_s": MOST_S, "added_s": added_s()}
    found |= {"plain_s": passage_s(20e-3, early_s=0.0), "early_s": passage_s(20e-3, early_s=10e-3)}
    with Lab(two_datacenters(), shaper="relay", largest_burst_bytes=1_000_000) as lab:
        found |= {f"link {number}": link["early_s"] for number, link in enumerate(lab.describe()["links"])}
    return found


def left_of_a_relay_that_cannot_begin() -> dict[str, object]:
    from testbed.errors import RunFailed
    from testbed.lab.shaping.relay import RelayProcess

    before = len(list(Path("/proc/self/fd").iterdir()))
    try:
        RelayProcess([], [{"source": 0}])
    except RunFailed as error:
        said = str(error)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {"said": said, "children": children, "files": len(list(Path("/proc/self/fd").iterdir())) == before}


def test_a_relay_that_cannot_begin_leaves_nothing() -> None:
    found = in_sandbox(left_of_a_relay_that_cannot_begin)
    assert "relay process" in str(found["said"])
    assert (found["children"], found["files"]) == ("", True)


def test_what_a_passage_takes_by_itself_is_taken_off() -> None:
    found = in_sandbox(facts)
    assert 0 < found["added_s"] <= found["most_s"]
    assert found["plain_s"] > 20e-3
    assert found["early_s"] < found["plain_s"] - 5e-3
    assert 0 < found["link 0"] == found["link 1"] <= found["most_s"]
