"""The fixture `testbed_lab` of the pytest plugin: a live lab in a test of another repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from in_sandbox import MARK, processes
from processes import wait_until

from testbed.lab.shaping.passage import MOST_S

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
TESTS = """
    import json
    import pytest
    from testbed.errors import BadInput, RunFailed

    pytestmark = pytest.mark.testbed_needs("lab")
    SETTINGS = [
        "topology.datacenters={paris: {nodes: 2}, warsaw: {nodes: 2}}",
        "topology.links.0={between: [paris, warsaw], delay: 30 ms, rate: 100 Mbit/s}",
    ]

    def test_a_lab(testbed_lab):
        lab = testbed_lab("two-dc.yaml", shaper="relay", settings=SETTINGS)
        assert lab.nodes == ("paris/0", "paris/1", "warsaw/0", "warsaw/1")
        assert lab.routers == ("paris", "warsaw")
        assert lab.shaper == "relay"
        done = lab.run("paris/0", "ping", "-c", "2", "-i", "0.2", lab.address("warsaw/1"))
        assert done.returncode == 0
        assert float(done.stdout.rpartition("min/avg/max/mdev = ")[2].partition("/")[0]) >= 60
        assert lab.run("paris", "false").returncode == 1
        assert lab.run("paris/0", "sh", "-c", "echo $0; exit 3", "; reboot").stdout == "; reboot\\n"
        with pytest.raises(BadInput, match="place: got 'rome', expected one of paris/0, "):
            lab.run("rome", "true")
        with pytest.raises(RunFailed, match="sleep 30 did not end within 0.2 s"):
            lab.run("paris/1", "sleep", "30", deadline_s=0.2)
        assert lab.run("paris/1", "echo", "later").stdout == "later\\n"

    def test_that_fails(testbed_lab):
        lab = testbed_lab("two-dc.yaml", shaper="relay")
        assert lab.run("paris/0", "echo", "<what> & why").returncode == 1

    def test_bad_input(testbed_lab):
        with pytest.raises(BadInput, match="nowhere.yaml"):
            testbed_lab("nowhere.yaml")
        with pytest.raises(BadInput, match="expected settings of the topology"):
            testbed_lab("two-dc.yaml", settings=["microbatches=3"])
"""


def test_a_lab_lives_as_long_as_its_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "topologies/two-dc-longhaul.yaml", pytester.path / "two-dc.yaml")
    monkeypatch.setenv(MARK, pytester.path.name)
    pytester.makeini("[pytest]")
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess("-rs", "--junit-xml", "report.xml")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["*- testbed: paris/0: echo <what> & why -*", "<what> & why", "exit code 0"])
    monkeypatch.delenv(MARK)
    wait_until(lambda: not processes(pytester.path.name), "a process of the lab is left")


MEASURING = """
    import json
    from pathlib import Path

    def test_links(testbed_lab):
        links = testbed_lab("two-dc.yaml", shaper="relay").measure()
        Path("links.json").write_text(json.dumps(links))
"""


def test_links_are_measured(pytester: pytest.Pytester) -> None:
    """Whether they are as asked, a busy machine may decide: that every direction is measured it may not."""
    shutil.copy(ROOT / "topologies/two-dc-longhaul.yaml", pytester.path / "two-dc.yaml")
    pytester.makeini("[pytest]")
    pytester.makepyfile(MEASURING)
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    links = json.loads((pytester.path / "links.json").read_text())
    assert [link["label"] for link in links] == ["paris->warsaw", "warsaw->paris"]
    assert all(link["measured"]["rtt_s"]["median"] > 2 * (link["asked"]["delay_s"] - MOST_S) for link in links)
