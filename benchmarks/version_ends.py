"""Do the tests pass with the oldest and with the newest versions of all packages that pyproject.toml allows?

    python benchmarks/version_ends.py [--which oldest|newest] [--python PYTHON] [--tests WORDS] [--limit SECONDS]

For each end pip makes a virtual environment in a temporary directory, of --python: `oldest` has the first version of
every range in pyproject.toml, `newest` the last that pip finds in it, and what these packages need themselves is the
newest that they allow. There pytest takes --tests, from a clone of the checkout as it is committed. Packages of which
the index has a release behind the end of their range are named. As root, or what needs root is skipped.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from harness import options
from harness.record import Claim, Topic, finish
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from testbed.errors import RunFailed
from testbed.lab.namespaces import die_with_parent
from testbed.scratch import scratch_directory

OLDEST, NEWEST = "oldest", "newest"
TESTS = "tests/unit tests/conformance tests/lab/test_run.py tests/vm/test_plans_in_one_boot.py -m 'not alone'"
"""All that measures nothing, a run in a lab of this machine, and plans in a guest."""
SHOWN_LINES = 40
Words = Sequence[str | Path]
"""A command."""


class Outcome(NamedTuple):
    """What pytest counted in one environment."""

    tests: int
    failed: int
    """Errors included."""
    skipped: int


def asked_for(document: str) -> list[Requirement]:
    """Every package that a pyproject.toml names: of the project, of its extras, of its tests; each once."""
    read = tomllib.loads(document)
    project = read["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values(), *read["dependency-groups"].values())
    return [*map(Requirement, dict.fromkeys(line for group in groups for line in group))]


def packages_of(tree: Path) -> list[Requirement]:
    """Those of a checkout."""
    return asked_for((tree / "pyproject.toml").read_text(encoding="utf-8"))


def wanted(packages: Sequence[Requirement], end: str) -> list[str]:
    """What pip is to install at that end of the ranges.

    Raises RunFailed for a range without a beginning.
    """
    return [_first(package) if end == OLDEST else str(package) for package in packages]


def _first(package: Requirement) -> str:
    lowest = [one.version for one in package.specifier if one.operator in (">=", "==")]
    if len(lowest) != 1:
        raise RunFailed(f"pyproject.toml: {package}: got no single first version, expected NAME>=VERSION or ==")
    first = copy(package)
    first.specifier = SpecifierSet(f"=={lowest[0]}")
    return str(first)


def call(words: Words, cwd: Path, until: float, *, shown: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command, shown or to be read; what this environment says of Python is not for it.

    Raises RunFailed when `until` (monotonic, s) has come.
    """
    seen = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    line = [str(word) for word in words]
    left = max(0.0, until - time.monotonic())
    try:
        return subprocess.run(
            line,
            cwd=cwd,
            env=seen,
            capture_output=not shown,
            text=True,
            timeout=left,
            check=False,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{shlex.join(line)}: did not end before --limit") from None


def need(words: Words, cwd: Path, until: float) -> str:
    """What a command printed. Raises RunFailed when it fails."""
    done = call(words, cwd, until)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-SHOWN_LINES:])
        raise RunFailed(f"{shlex.join(map(str, words))}: exit code {done.returncode}\n{last}")
    return done.stdout


def environment(scratch: Path, python: str, end: str, until: float) -> Path:
    """The interpreter of a new environment at that end, with a clone of the checkout, `tree` beside it, installed.

    Raises RunFailed.
    """
    inside = scratch / "env/bin/python"
    need(["git", "clone", "--quiet", options.ROOT, scratch / "tree"], scratch, until)
    need([python, "-m", "venv", scratch / "env"], scratch, until)
    install: Words = [inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    need([*install, *wanted(packages_of(scratch / "tree"), end)], scratch, until)
    need([*install, "--no-deps", "--no-build-isolation", "--editable", scratch / "tree"], scratch, until)
    print(f"{end}:", need([inside, "-m", "pip", "freeze", "--exclude-editable"], scratch, until), flush=True)
    return inside


def counted(report: Path) -> Outcome:
    """Of pytest's report as JUnit XML. Raises RunFailed where pytest wrote none."""
    if not report.is_file():
        raise RunFailed("pytest ended before it counted anything")
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))

    def total(*names: str) -> int:
        return sum(int(suite.get(name, "0")) for suite in suites for name in names)

    return Outcome(total("tests"), total("failures", "errors"), total("skipped"))


def behind_their_ranges(inside: Path, scratch: Path, until: float) -> Iterator[str]:
    """Packages that pyproject.toml names, with the newest release that the index has and the range leaves out."""
    ranges = {canonicalize_name(package.name): package.specifier for package in packages_of(scratch / "tree")}
    line: Words = [inside, "-m", "pip", "--disable-pip-version-check", "list", "--outdated", "--format=json"]
    for one in json.loads(need(line, scratch, until)):
        name, newest = canonicalize_name(one["name"]), one["latest_version"]
        if name in ranges and newest not in ranges[name]:
            yield f"{name} {newest} ({ranges[name]})"


def tried(asked: Namespace, end: str) -> Iterator[Claim]:
    """The tests at one end. Raises RunFailed."""
    began = time.monotonic()
    until = began + asked.limit
    with scratch_directory(f"testbed-{end}-") as scratch:
        inside = environment(scratch, asked.python, end, until)
        version = need([inside, "-c", "import platform; print(platform.python_version())"], scratch, until).strip()
        report = scratch / "report.xml"
        pytest: Words = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        code = call([*pytest, *shlex.split(asked.tests)], scratch / "tree", until, shown=True).returncode
        outcome = counted(report)
        passed = outcome.tests - outcome.failed - outcome.skipped
        print(f"{end}, Python {version}: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
        yield Claim(
            f"tests with the {end} versions of all packages, Python {version}",
            "none fails",
            f"{passed:,} passed, {outcome.failed} failed, {outcome.skipped} skipped",
            code == 0,
            float(outcome.failed),
            "failed",
        )
        if end == NEWEST:
            newer = ", ".join(behind_their_ranges(inside, scratch, until))
            yield Claim("releases in the index that the ranges leave out", "(report)", newer or "none")


def claims_of(asked: Namespace, end: str) -> Iterator[Claim]:
    """The same, whatever happens: where no test could be run, that is what came out."""
    try:
        yield from tried(asked, end)
    except RunFailed as error:
        print(error, flush=True)
        yield Claim(f"tests with the {end} versions of all packages", "none fails", "could not be run", passed=False)


def main() -> int:
    """1 where a test fails."""
    parser = options.parser(__doc__)
    parser.add_argument("--which", choices=(OLDEST, NEWEST), help="one end; default: both")
    parser.add_argument("--python", default=sys.executable, help="the interpreter; default: the one that runs this")
    parser.add_argument("--tests", default=TESTS, metavar="WORDS", help=f"what pytest is told; default: {TESTS}")
    parser.add_argument("--limit", type=float, default=7200.0, metavar="SECONDS", help="for each end; default: 7200")
    asked = parser.parse_args()
    claims = [claim for end in ([asked.which] if asked.which else [OLDEST, NEWEST]) for claim in claims_of(asked, end)]
    return finish(asked, Topic.FRONT_DOOR, claims, clock="real")


if __name__ == "__main__":
    sys.exit(main())
