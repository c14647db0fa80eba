"""What pytest loads: options, the marker, the fixtures, and the tables in the report of a test that fails.

pytest imports this at every start, in every repository where the testbed is installed: nothing slow is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from testbed.errors import ExitCode, MachineLacks

if TYPE_CHECKING:
    from testbed.pytest_plugin.fixture_values import Prediction, Training
    from testbed.pytest_plugin.fixtures import Fixtures
    from testbed.pytest_plugin.lab_fixture import LiveLab

MARKER = "testbed_needs"
_BASELINES = "testbed_baselines"
_REQUIRE = "--testbed-require"

_SECTIONS = pytest.StashKey[list[tuple[str, str]]]()
"""Of a test, what its report is to hold if it fails: (title, text)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--testbed-require`, and where baselines lie."""
    parser.getgroup("testbed").addoption(
        _REQUIRE,
        action="store_true",
        help="a test that this machine cannot run (no root, no kernel of the virtual clock) fails; default: is skipped",
    )
    parser.addini(_BASELINES, "where baselines lie, from the root directory", default="results/baselines")


def pytest_configure(config: pytest.Config) -> None:
    """The marker, for --strict-markers and --markers."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(*what): skipped, with the reason, where the machine has not all of: 'lab' (root and namespaces), "
        "'virtual-clock' (root and the kernel that `testbed kernel build` makes)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises pytest.UsageError for a marker that names what nobody knows."""
    for item in items:
        for mark in item.iter_markers(MARKER):
            if not mark.args or mark.kwargs or not set(mark.args) <= set(_NEEDS):
                given = ", ".join(map(repr, mark.args)) or "nothing"
                raise pytest.UsageError(f"{item.nodeid}: {MARKER}: got {given}, expected some of {', '.join(_NEEDS)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the machine cannot do, before any fixture is made."""
    for mark in item.iter_markers(MARKER):
        for name in mark.args:
            if (lack := _NEEDS[name]()) is not None:
                _lacks(item.config, lack)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows the tables of what it has run."""
    report = yield
    if report.when == "call" and report.failed:
        kept: list[tuple[str, str]] = item.stash.get(_SECTIONS, [])
        report.sections.extend(kept)
    return report


# --- what a machine can do -----------------------------------------------------------------------


@cache
def _lab_lacks() -> str | None:
    from testbed.pytest_plugin.machine import lab_lacks

    return lab_lacks()


@cache
def _virtual_clock_lacks() -> str | None:
    from testbed.pytest_plugin.machine import virtual_clock_lacks

    return virtual_clock_lacks()


_NEEDS: dict[str, Callable[[], str | None]] = {"lab": _lab_lacks, "virtual-clock": _virtual_clock_lacks}
"""By what the marker calls it, what finds the reason why it is not there; None: it is."""


def _lacks(config: pytest.Config, reason: str) -> NoReturn:
    if config.getoption(_REQUIRE):
        pytest.fail(f"{reason} ({_REQUIRE}: not skipped)", pytrace=False)
    pytest.skip(reason)


@contextmanager
def _skipping(config: pytest.Config) -> Iterator[None]:
    """What the machine lacks skips the test."""
    try:
        yield
    except MachineLacks as lack:
        _lacks(config, str(lack))


# --- fixtures ------------------------------------------------------------------------------------


def _show(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """What takes title and text for the report of a test, if it fails."""
    sections = request.node.stash.setdefault(_SECTIONS, [])
    return lambda title, text: sections.append((f"testbed: {title}", text))


@pytest.fixture
def testbed_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., LiveLab]]:
    """`testbed_lab(topology, shaper="auto", settings=())`: a live lab, which ends with the test.

    Skips the test where the machine cannot build one.
    """
    from testbed.pytest_plugin.lab_fixture import LiveLab

    with ExitStack() as stack:

        def build(topology: str | Path, *, shaper: str = "auto", settings: Sequence[str] = ()) -> LiveLab:
            __tracebackhide__ = True
            number = sum(1 for _ in tmp_path.glob("testbed-lab-*"))
            log = tmp_path / f"testbed-lab-{number}.log"
            lab = LiveLab(request.config.rootpath, topology, shaper, settings, log, _show(request))
            with _skipping(request.config):
                return stack.enter_context(lab)

        yield build


def _fixtures(request: pytest.FixtureRequest) -> Fixtures:
    """The commands, from the root directory of the tests; what they print is kept for the report."""
    from testbed.pytest_plugin.fixtures import Fixtures

    return Fixtures(request.config.rootpath, _show(request))


@pytest.fixture
def testbed_predict(request: pytest.FixtureRequest) -> Callable[..., dict[str, Prediction]]:
    """`testbed_predict(topology, workload, schedules=(), settings=())`: by label what the model says.

    Of `schedules` every one must fit; of those that the workload lists, those that do not fit are left out.
    """
    return _fixtures(request).predict


@pytest.fixture
def testbed_run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Training]:
    """`testbed_run(topology, workload, schedules=(), settings=(), clock="virtual", ...)`: a real training's results.

    They are kept in `tmp_path`. Skips the test where the machine cannot run it.
    """
    fixtures = _fixtures(request)

    def run(
        topology: str | Path,
        workload: str | Path,
        *,
        schedules: Sequence[str] = (),
        settings: Sequence[str] = (),
        iterations: int | None = None,
        clock: str = "virtual",
        seed: int | None = None,
        deadline_s: float = 1800.0,
    ) -> Training:
        __tracebackhide__ = True
        number = sum(1 for _ in tmp_path.glob("testbed-run-*"))
        place = tmp_path / f"testbed-run-{number}"
        with _skipping(request.config):
            return fixtures.run(
                place,
                topology,
                workload,
                schedules=schedules,
                settings=settings,
                iterations=iterations,
                clock=clock,
                seed=seed,
                deadline_s=deadline_s,
            )

    return run


@pytest.fixture
def testbed_baseline(request: pytest.FixtureRequest) -> Callable[..., str]:
    """`testbed_baseline(name_or_directory, predict_only=False, allow_faster=False)`: repeats a kept baseline.

    The test fails where it is outside its tolerances, and is skipped where the machine cannot repeat it, or is too
    much another one to tell (see docs/baselines.md); returns the comparison as text.
    """
    fixtures, root = _fixtures(request), request.config.rootpath / str(request.config.getini(_BASELINES))

    def check(
        baseline: str | Path,
        *,
        predict_only: bool = False,
        allow_faster: bool = False,
        deadline_s: float = 1800.0,
    ) -> str:
        __tracebackhide__ = True
        with _skipping(request.config):
            code, text = fixtures.check(
                root, baseline, predict_only=predict_only, allow_faster=allow_faster, deadline_s=deadline_s
            )
        if code == ExitCode.UNTRUSTED:
            _lacks(request.config, f"baseline {baseline}: {text.splitlines()[0]}")
        if code != ExitCode.OK:
            pytest.fail(f"baseline {baseline}: {text.splitlines()[0]}", pytrace=False)
        return text

    return check
