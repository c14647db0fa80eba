"""Trains cells of a study in one boot of the virtual clock; `cell_runs.py` starts it in a process of its own.

    python -m testbed.study.cell_worker DIRECTORY SHAPER LIMIT_S NAME...

Every DIRECTORY/NAME holds the plan.json of a cell, and gets the files of its run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from testbed.errors import ExitCode, Interrupted, MachineLacks, TestbedError
from testbed.interrupts import persistent_interrupts
from testbed.lab.shaping import AUTO
from testbed.planning import file
from testbed.progress import Lines
from testbed.vm import command


def main(directory: str, shaper: str, limit_s: str, *names: str) -> int:
    """Train the plans of these cells; returns the exit code of the boot: what became of the cells their files say.

    Of one cell alone that the guest cannot measure, it is that of MachineLacks.
    """
    places = [Path(directory, name) for name in names]
    shaper = AUTO if shaper == "netem" else shaper  # where links change, the relay has to carry them
    trainings = [command.GuestTraining(file.read(place / file.NAME), place, shaper, quiet=True) for place in places]
    # cells whose nodes have limits are refused alone, as whoever asked for them has them tried again
    if without := [training for training in trainings if not training.plan.network.limits]:
        trainings = without
    else:
        command.require_no_limits(trainings[0].plan)
    machine = command.choose_machine(trainings[0].plan.clock)
    boot, _ = command.train(machine, trainings, limit_s=float(limit_s), reporter=Lines(quiet=True))
    alone_and_lacking = [ended.code for ended in boot.ended] == [MachineLacks.exit_code]
    return ExitCode.MACHINE_LACKS if alone_and_lacking else ExitCode.OK


if __name__ == "__main__":
    try:
        with persistent_interrupts():
            code = main(*sys.argv[1:])
    except TestbedError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = Interrupted.exit_code
    sys.exit(code)
