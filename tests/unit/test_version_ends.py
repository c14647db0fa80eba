"""benchmarks/version_ends.py asks pip for the right versions, and counts what pytest says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import version_ends
from packaging.requirements import Requirement
from version_ends import NEWEST, OLDEST, Outcome, asked_for, counted, wanted

from testbed.errors import RunFailed

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
DOCUMENT = """
[project]
dependencies = ["alpha>=2.3,<2.5", "Beta_B[fast]<4,>=1.0.1 ; python_version < '4'"]
[project.optional-dependencies]
more = ["gamma==3.1.dev6", "alpha>=2.3,<2.5"]
[dependency-groups]
test = ["delta>=9.14.6206,<10"]
"""
TESTS = """
import pytest
def test_passes(): pass
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("of this machine")
@pytest.fixture
def broken(): raise OSError
def test_errs(broken): pass
"""


def test_the_oldest_end_is_the_first_version_of_every_range() -> None:
    assert wanted(asked_for(DOCUMENT), OLDEST) == [
        "alpha==2.3",
        'Beta_B[fast]==1.0.1; python_version < "4"',
        "gamma==3.1.dev6",
        "delta==9.14.6206",
    ]


def test_the_newest_end_is_whatever_pip_finds_in_the_ranges() -> None:
    packages = asked_for(DOCUMENT)
    assert [*map(Requirement, wanted(packages, NEWEST))] == packages
    assert wanted(packages, OLDEST) != wanted(packages, NEWEST), "asking for one end does not change the other"


@pytest.mark.parametrize("package", ["alpha", "alpha<2", "alpha>=1,>=2"])
def test_a_range_without_a_beginning_is_refused(package: str) -> None:
    with pytest.raises(RunFailed, match=f"{package.partition('=')[0]}.*expected"):
        wanted([Requirement(package)], OLDEST)


def test_both_ends_of_our_own_ranges_lie_in_them() -> None:
    packages = asked_for(PYPROJECT.read_text(encoding="utf-8"))
    assert {"numpy", "torch", "ray", "perfetto", "pytest"} <= {package.name for package in packages}
    for package, line in zip(packages, wanted(packages, OLDEST), strict=True):
        (first,) = Requirement(line).specifier
        assert Requirement(line).name == package.name
        assert first.operator == "=="
        assert first.version in package.specifier, line


def test_what_pytest_reports_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    with pytest.raises(RunFailed, match="counted"):
        counted(report)
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert counted(report) == Outcome(tests=4, failed=2, skipped=1)


def test_a_command_has_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="--limit"):
        version_ends.call(["sleep", "60"], tmp_path, until=0.0)
