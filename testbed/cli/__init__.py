"""The command line: parse, call, print. Whatever is slow to import is imported by the command that needs it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from testbed import __version__
from testbed.cli import baseline, calibrate, determinism, doctor, kernel, plan, predict, report, run, schedule, shell
from testbed.errors import ExitCode, TestbedError

app = typer.Typer(
    name="testbed",
    help="Train real pipelines across emulated datacenters, and compare what is measured with what the model says.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("predict")(predict.predict)
app.command("plan")(plan.plan)
app.command("run")(run.run)
app.command("calibrate")(calibrate.calibrate)
app.command("shell")(shell.shell)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.add_typer(schedule.schedule_app, name="schedule")
app.add_typer(baseline.baseline_app, name="baseline")
app.add_typer(kernel.kernel_app, name="kernel")
app.command("test-determinism")(determinism.determinism)


_INTERRUPTED = 130
"""What typer makes of Ctrl-C, without a word."""


def main() -> None:
    """Entry point: runs a command and turns our errors, and Ctrl-C, into one line and an exit code."""
    try:
        app(standalone_mode=True)
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as leaving:
        if leaving.code != _INTERRUPTED:
            raise
        print("interrupted", file=sys.stderr)
        sys.exit(ExitCode.RUN_FAILED)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass
