"""Trains plans one after another in one boot of the virtual clock: `python train_in_one_boot.py TRAININGS.json`.

The file is a list of [file of a plan, directory for results, shaper, quiet]. A guest is booted by a single-threaded
process, which pytest's is not. Prints the comparisons, null where there is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from testbed.plan.plan import Clock
from testbed.planning import file
from testbed.progress import Lines
from testbed.vm import command

LIMIT_S = 1770


def main(trainings: Path) -> int:
    asked = [
        command.GuestTraining(file.from_json(Path(plan).read_text(), plan), Path(out), shaper, quiet=quiet)
        for plan, out, shaper, quiet in json.loads(trainings.read_text())
    ]
    chosen = command.choose_machine(Clock("virtual"))
    _, documents = command.train(chosen, asked, limit_s=LIMIT_S, reporter=Lines(quiet=False))
    print(json.dumps(documents))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
