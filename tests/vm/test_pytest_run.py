"""The fixtures `testbed_run` and `testbed_baseline` of the pytest plugin, on the virtual clock."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from testbed.vm.kernel import Kernel

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SHIPPED = ("topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml")
TESTS = f"""
    import pytest

    pytestmark = pytest.mark.testbed_needs("virtual-clock")

    def test_training(testbed_run, tmp_path):
        settings = ["microbatches=2", "warmup=1"]
        found = testbed_run(*{SHIPPED!r}, schedules=["1f1b", "gpipe"], settings=settings, iterations=1)
        assert list(found.schedules) == ["1f1b", "gpipe"]
        assert found.trusted and not found["1f1b"].reasons
        assert abs(found["1f1b"].error) < 5e-4
        assert found["1f1b"].measured_s == pytest.approx(found["1f1b"].predicted_s, rel=5e-4)
        assert found.fastest in ("1f1b", "gpipe")
        assert (found.directory / "actions.parquet").is_file()
        assert tmp_path in found.directory.parents
        assert found[found.fastest].measured_s < 0, "so that the report is seen"

    def test_kept(testbed_baseline):
        assert testbed_baseline("small-longhaul").startswith("within tolerance: 1 baseline, 2 schedules")
"""


def test_a_training_in_a_test_of_another_repository(
    pytester: pytest.Pytester, time_travel_kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(time_travel_kernel.path.parents[3]))
    for name in SHIPPED:
        (pytester.path / name).parent.mkdir()
        shutil.copy(ROOT / name, pytester.path / name)
    shutil.copytree(ROOT / "results/baselines/small-longhaul", pytester.path / "results/baselines/small-longhaul")
    pytester.makeini("[pytest]")
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(failed=1, passed=1)
    shown = done.stdout.str()
    assert "so that the report is seen" in shown, shown
    done.stdout.fnmatch_lines(["*- testbed: workloads/*.yaml on topologies/*.yaml, virtual clock -*", "*measured*"])
    assert "│ gpipe" in shown
    assert "all trusted" in shown
