"""`testbed doctor`: what this machine can do, by trying it."""

from __future__ import annotations

from dataclasses import asdict

import typer

from testbed.cli.options import AsJson, emit, show, stdout_console
from testbed.errors import ExitCode


def doctor(as_json: AsJson = False) -> None:
    """Try every feature the testbed needs, and name the command that adds what is missing."""
    from testbed.cli.lab_tables import doctor_lines
    from testbed.lab.doctor import examine, usable, ways
    from testbed.vm.guest_doctor import examine as examine_guests

    findings = [*examine(), *examine_guests()]
    if as_json:
        emit({"findings": [asdict(finding) for finding in findings], "ways": ways(findings)})
    else:
        show(stdout_console(80), *doctor_lines(findings), *(f"{clock}: {how}" for clock, how in ways(findings).items()))
    if not usable(findings):
        raise typer.Exit(ExitCode.MACHINE_LACKS)
