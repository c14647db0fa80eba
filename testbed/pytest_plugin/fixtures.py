"""What fixtures do: commands of the testbed in processes of their own, since a guest or a lab cannot be started here.

(A sandbox is entered by a process of one thread without torch; a test's process has both.)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import BadInput, ExitCode, MachineLacks, RunFailed, TestbedError
from testbed.pytest_plugin.fixture_values import Prediction, TrainedSchedule, Training

_PREDICT_DEADLINE_S = 600.0
_COLUMNS = "100"
"""Of the tables in a report."""


class CommandEnd(NamedTuple):
    """How a command ended, of those ends that are no error."""

    code: int
    stdout: str


@dataclass(frozen=True)
class Fixtures:
    """The commands, started from the directory `root`; `show` takes title and text for the report of the test."""

    root: Path
    show: Callable[[str, str], None]

    def predict(
        self,
        topology: str | Path,
        workload: str | Path,
        schedules: Sequence[str] = (),
        settings: Sequence[str] = (),
    ) -> dict[str, Prediction]:
        """By label, what the model says of every schedule. Raises BadInput or RunFailed."""
        __tracebackhide__ = True
        options = [*_named(schedules, settings), *(["--strict"] if schedules else [])]
        words = ("predict", topology, workload, *options)
        document = json.loads(command([*words, "--json", "--quiet"], self.root, _PREDICT_DEADLINE_S).stdout)
        found = {row["label"]: Prediction.of(row) for row in document["schedules"]}
        self.show(f"predicted, {workload} on {topology}", _lines_of(found))
        return found

    def run(
        self,
        place: Path,
        topology: str | Path,
        workload: str | Path,
        *,
        schedules: Sequence[str],
        settings: Sequence[str],
        iterations: int | None,
        clock: str,
        seed: int | None,
        deadline_s: float,
    ) -> Training:
        """Train, with results in `place`. Raises BadInput, MachineLacks or RunFailed."""
        __tracebackhide__ = True
        options = [*_named(schedules, settings), "--clock", clock, "--out", str(place)]
        if iterations is not None:
            options += ["--iterations", str(iterations)]
        if seed is not None:
            options += ["--seed", str(seed)]
        if clock == "virtual":  # else a real clock's own deadlines end it
            options += ["--wall-limit", f"{deadline_s:g}"]
        ended = command(
            ["run", topology, workload, *options, "--quiet"],
            self.root,
            deadline_s + _GRACE_S,
            further=(ExitCode.UNTRUSTED,),
        )
        self.show(f"{workload} on {topology}, {clock} clock", ended.stdout)
        return _training(place)

    def check(
        self, root: Path, baseline: str | Path, *, predict_only: bool, allow_faster: bool, deadline_s: float
    ) -> tuple[ExitCode, str]:
        """How a check of a baseline ended (OK, REGRESSION, or UNTRUSTED: the machine is another one), the comparison.

        Raises BadInput, MachineLacks or RunFailed.
        """
        __tracebackhide__ = True
        options = ["--baselines", str(root)]
        options += ["--predict-only"] if predict_only else ["--wall-limit", f"{deadline_s:g}"]
        options += ["--allow-faster"] if allow_faster else []
        ended = command(
            ["baseline", "check", baseline, *options, "--quiet"],
            self.root,
            deadline_s + _GRACE_S,
            further=(ExitCode.REGRESSION, ExitCode.UNTRUSTED),
        )
        self.show(f"baseline {baseline}", ended.stdout)
        return ExitCode(ended.code), ended.stdout


_GRACE_S = 60.0
"""For what a command does before and after what has a deadline of its own."""


def _named(schedules: Sequence[str], settings: Sequence[str]) -> list[str]:
    """As options; a text by itself is one of them."""
    return [
        word
        for option, values in (("--schedule", schedules), ("--set", settings))
        for value in ([values] if isinstance(values, str) else values)
        for word in (option, value)
    ]


def command(
    words: Sequence[str | Path], directory: Path, deadline_s: float, *, further: tuple[ExitCode, ...] = ()
) -> CommandEnd:
    """Run `testbed` with these words; `further` are exit codes beside 0 that are no error.

    Raises BadInput, MachineLacks or RunFailed with what it said.
    """
    __tracebackhide__ = True
    # -P: a directory of the tests that is called testbed is not the testbed
    line = [sys.executable, "-P", "-m", "testbed", *map(str, words)]
    try:
        done = subprocess.run(
            line,
            cwd=directory,
            env={**os.environ, "COLUMNS": _COLUMNS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"testbed {words[0]} did not end within {deadline_s:g} s") from error
    if done.returncode in (ExitCode.OK, *further):
        return CommandEnd(done.returncode, done.stdout)
    raise error_of(done.returncode, done.stderr, f"testbed {words[0]}")


_ERRORS: Mapping[int, type[TestbedError]] = {ExitCode.BAD_INPUT: BadInput, ExitCode.MACHINE_LACKS: MachineLacks}


def error_of(code: int, said: str, what: str) -> TestbedError:
    """The exception that ended a command, from its exit code and what it wrote on stderr."""
    words = re.split(r"^error: ", said, flags=re.MULTILINE)[-1].strip() or f"it ended with exit code {code}"
    return _ERRORS.get(code, RunFailed)(f"{what}: {words}")


def _training(place: Path) -> Training:
    document: Mapping[str, Any] = json.loads((place / "comparison.json").read_text(encoding="utf-8"))
    return Training(place, {row["label"]: TrainedSchedule.of(row) for row in document["schedules"]}, document)


def _lines_of(found: Mapping[str, Prediction]) -> str:
    wide = max(map(len, found), default=0)
    return "\n".join(f"{label:<{wide}}  {one.predicted_s:.9f} s" for label, one in found.items())
