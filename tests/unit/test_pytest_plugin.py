"""The pytest plugin in another repository: what it adds, what a failing test shows, what is skipped, and its speed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from testbed import __version__
from testbed.pytest_plugin import plugin
from testbed.pytest_plugin.fixtures import command, error_of

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
NAMES = ("testbed_lab", "testbed_predict", "testbed_run", "testbed_baseline")
SLOW = ("torch", "pandas", "numba", "numpy", "matplotlib", "pydantic", "rich", "mininet")
SHIPPED = ("topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml")
KEPT = "small-longhaul"


@pytest.fixture
def repository(pytester: pytest.Pytester) -> pytest.Pytester:
    """Another repository, with a topology, a workload and a baseline."""
    for name in SHIPPED:
        (pytester.path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, pytester.path / name)
    shutil.copytree(ROOT / "results/baselines" / KEPT, pytester.path / "results/baselines" / KEPT)
    pytester.makeini("[pytest]\naddopts = --strict-markers\n")
    return pytester


def test_importing_the_plugin_imports_nothing_slow() -> None:
    code = "import sys, testbed.pytest_plugin.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert "testbed" in imported
    assert not imported & set(SLOW)


def test_an_installed_testbed_is_a_plugin_of_pytest() -> None:
    (entry,) = [one for one in entry_points(group="pytest11") if one.name == "testbed"]
    assert entry.load() is plugin


def test_its_fixtures_and_marker_are_listed(repository: pytest.Pytester) -> None:
    shown = repository.runpytest_subprocess("--fixtures").stdout.str()
    for name in NAMES:
        assert f"\n{name} -- " in shown, name
    assert f"@pytest.mark.{plugin.MARKER}(*what): skipped" in repository.runpytest_subprocess("--markers").stdout.str()


PREDICTING = f"""
    import pytest
    from testbed.errors import BadInput

    FILES = {SHIPPED!r}

    def test_times(testbed_predict):
        found = testbed_predict(*FILES, schedules=["1f1b", "zb-h1"], settings=["microbatches=4"])
        assert list(found) == ["1f1b", "zb-h1"]
        assert found["zb-h1"].predicted_s < found["1f1b"].predicted_s < 1
        assert found["1f1b"].low_s == found["1f1b"].high_s == found["1f1b"].predicted_s
        assert found["1f1b"].peak_in_flight == 4

    def test_bad_input(testbed_predict):
        with pytest.raises(BadInput, match=r"microbatches: got 0, expected"):
            testbed_predict(*FILES, settings=["microbatches=0"])

    def test_that_fails(testbed_predict):
        assert testbed_predict(*FILES, schedules=["gpipe"])["gpipe"].predicted_s < 1e-3
"""


def test_predictions_and_the_report_of_a_test_that_fails(repository: pytest.Pytester) -> None:
    repository.makepyfile(PREDICTING)
    done = repository.runpytest_subprocess()
    done.assert_outcomes(passed=2, failed=1)
    assert "fixtures.py" not in done.stdout.str(), "where the testbed was left is no news"
    done.stdout.fnmatch_lines(["*- testbed: predicted, workloads/*.yaml on topologies/*.yaml -*", "gpipe  0.* s"])
    assert "zb-h1  0." not in done.stdout.str(), "of a test that passed nothing is shown"


CHECKING = """
    def test_kept(testbed_baseline):
        assert testbed_baseline("small-longhaul", predict_only=True).startswith("within tolerance")

    def test_slower(testbed_baseline):
        testbed_baseline("results/baselines/slower", predict_only=True)
        raise RuntimeError("this is not reached")

    def test_none(testbed_baseline):
        testbed_baseline("nothing", predict_only=True)
"""


ANOTHER_MACHINE = """
    from testbed.errors import ExitCode
    from testbed.pytest_plugin.fixtures import Fixtures

    def test_kept(testbed_baseline, monkeypatch):
        ended = ExitCode.UNTRUSTED, "NOT TO BE TRUSTED: the machine explains 1 of 1 schedule"
        monkeypatch.setattr(Fixtures, "check", lambda *_, **__: ended)
        testbed_baseline("kept")
"""


def test_a_baseline_that_another_machine_explains_is_skipped_unless_it_must_not_be(pytester: pytest.Pytester) -> None:
    """How it comes about is tested in a lab (test_control_in_lab.py)."""
    pytester.makepyfile(ANOTHER_MACHINE)
    done = pytester.runpytest_subprocess("-rs")
    done.assert_outcomes(skipped=1)
    assert "baseline kept: NOT TO BE TRUSTED: the machine explains" in done.stdout.str()
    pytester.runpytest_subprocess("--testbed-require").assert_outcomes(failed=1)


def test_a_baseline_outside_its_tolerance_fails_with_the_table(repository: pytest.Pytester) -> None:
    place = repository.path / "results/baselines"
    shutil.copytree(place / KEPT, place / "slower")
    comparison = place / "slower/comparison.json"
    comparison.write_text(comparison.read_text().replace('"predicted_s": 0.', '"predicted_s": 0.1'))
    repository.makepyfile(CHECKING)
    done = repository.runpytest_subprocess()
    done.assert_outcomes(passed=1, failed=2)
    shown = done.stdout.str()
    assert "baseline results/baselines/slower: OUTSIDE TOLERANCE: 2 of 2 schedules" in shown
    done.stdout.fnmatch_lines(["*- testbed: baseline results/baselines/slower -*", "*1f1b * predicted * slower*"])
    assert "BadInput: testbed baseline: baseline: name: got 'nothing', expected a directory with baseline.json" in shown
    assert "this is not reached" not in [line.strip() for line in shown.splitlines() if line.startswith("E ")]


RUNNING = f"""
    import pytest

    def test_run(testbed_run):
        testbed_run(*{SHIPPED!r}, schedules=["1f1b"], iterations=1)
        raise RuntimeError("this is not reached")

    @pytest.mark.testbed_needs("virtual-clock")
    def test_marked():
        raise RuntimeError("this is not reached")
"""
REASON = "is not built; build it with: testbed kernel build"


def test_what_the_machine_lacks_skips_with_the_reason(
    repository: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the kernel of the virtual clock, looked for in a directory without one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(repository.path / "no-kernel"))
    repository.makepyfile(RUNNING)
    done = repository.runpytest_subprocess("-rs")
    done.assert_outcomes(skipped=2)
    assert done.stdout.str().count(REASON) == 2
    required = repository.runpytest_subprocess("--testbed-require")
    required.assert_outcomes(failed=1, errors=1)
    assert required.stdout.str().count("(--testbed-require: not skipped)") >= 2


@pytest.mark.parametrize("marker", ["testbed_needs('gpu')", "testbed_needs", "testbed_needs('lab', root=True)"])
def test_a_marker_that_names_nothing_known_ends_the_session(repository: pytest.Pytester, marker: str) -> None:
    repository.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_it():\n    pass\n")
    done = repository.runpytest_subprocess()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: *::test_it: testbed_needs: got *, expected some of lab, virtual-clock"])


def test_a_directory_called_testbed_is_not_taken_for_the_testbed(tmp_path: Path) -> None:
    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed/__init__.py").write_text("raise RuntimeError('another one')\n")
    assert command(["--version"], tmp_path, 60).stdout.strip() == __version__


@pytest.mark.parametrize(
    ("code", "said", "error"),
    [
        (2, "a line\nerror: a.yaml: 2 faults\n  x: got 1\n", "BadInput: run: a.yaml: 2 faults\n  x: got 1"),
        (3, "error: no kernel: an error: none", "MachineLacks: run: no kernel: an error: none"),
        (4, "error: a worker died", "RunFailed: run: a worker died"),
        (-9, "", "RunFailed: run: it ended with exit code -9"),
    ],
)
def test_how_a_command_ended_is_the_exception(code: int, said: str, error: str) -> None:
    found = error_of(code, said, "run")
    assert f"{type(found).__name__}: {found}" == error
