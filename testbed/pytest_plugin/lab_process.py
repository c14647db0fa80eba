"""The process that holds a test's lab: `python -m testbed.pytest_plugin.lab_process ASKED REQUESTS ANSWERS`.

ASKED is a JSON object (topology, shaper, settings), the others are file descriptors: a JSON object per line in either
direction. The lab ends when nobody can ask any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from testbed.errors import ExitCode, RunFailed
from testbed.failure import failed

if TYPE_CHECKING:
    from testbed.lab.lab import Lab


def main(asked: str, requests: int, answers: int) -> int:
    """Build the lab and serve it; returns the exit code."""
    from testbed.lab.sandbox import run_with_own_files
    from testbed.planning.resolve import measurement_of, overrides_of
    from testbed.spec import load_topology

    wanted = json.loads(asked)
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    try:
        _, of_topology = overrides_of(wanted["settings"])
        plan = measurement_of(load_topology(Path(wanted["topology"]), of_topology))

        def body() -> int:
            from testbed.lab.lab import Lab

            with (
                os.fdopen(requests, encoding="utf-8") as read,
                os.fdopen(answers, "w", encoding="utf-8") as write,
                Lab(plan, shaper=wanted["shaper"], progress=lambda text: print(text, flush=True)) as lab,
            ):
                _serve(lab, read, write)
            return ExitCode.OK

        return run_with_own_files(body)
    except Exception as error:  # noqa: BLE001 - this is the top of a process
        return failed(error)


def _serve(lab: Lab, requests: TextIO, answers: TextIO) -> None:
    """Answer what is asked, until nobody asks any more."""
    names = [*lab.nodes, *lab.routers]
    built = {"nodes": list(lab.nodes), "routers": list(lab.routers), "shaper": lab.shaper_name}
    _say(answers, {**built, "addresses": {name: lab.address(name) for name in names}})
    for line in requests:
        request = json.loads(line)
        try:
            answer = _measured(lab) if request["do"] == "measure" else _ran(lab, request)
        except RunFailed as error:
            answer = {"error": str(error)}
        _say(answers, answer)


def _say(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _measured(lab: Lab) -> dict[str, Any]:
    from testbed.lab.calibrate import calibrate

    return {"links": [check.as_json() for check in calibrate(lab)]}


def _ran(lab: Lab, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program in a container. Raises RunFailed."""
    place, command, deadline_s = request["place"], request["command"], request["deadline_s"]
    container = lab.containers.get(place) or lab.routers[place]
    try:
        done = subprocess.run(
            [*container.entry(), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{place}: {' '.join(command)} did not end within {deadline_s:g} s") from error
    lab.alive.require("a program ran")
    return {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
