"""`testbed doctor`: what this machine can do, by trying it."""

from __future__ import annotations

from dataclasses import asdict

import typer

from testbed.cli.guest import kept_now, words_of
from testbed.cli.options import AsJson, emit, show, stdout_console
from testbed.errors import ExitCode, RunFailed


def doctor(as_json: AsJson = False) -> None:
    """Try every feature the testbed needs, and name the command that adds what is missing."""
    from testbed.cli.lab_tables import doctor_lines
    from testbed.lab.doctor import examine, usable, ways
    from testbed.vm.guest_doctor import examine as examine_guests

    findings = [*examine(), *examine_guests()]
    try:
        kept = kept_now()
        guest = [] if kept is None else [words_of(kept)]
    except RunFailed as error:  # it does not answer, and is ended
        kept, guest = {"error": str(error)}, [str(error)]
    if as_json:
        emit({"findings": [asdict(finding) for finding in findings], "ways": ways(findings), "kept_guest": kept})
    else:
        clocks = [f"{clock}: {how}" for clock, how in ways(findings).items()]
        show(stdout_console(80), *doctor_lines(findings), *clocks, *guest)
    if not usable(findings):
        raise typer.Exit(ExitCode.MACHINE_LACKS)
