"""The command line: parse, call, print. Whatever is slow to import is imported by the command that needs it."""

from __future__ import annotations

import errno
import inspect
import os
import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from testbed import __version__
from testbed.cli import (
    baseline,
    calibrate,
    compare_axes,
    determinism,
    doctor,
    kernel,
    knee,
    plan,
    predict,
    report,
    route,
    run,
    schedule,
    shell,
    tune,
)
from testbed.cli.usage import as_bad_input
from testbed.errors import ExitCode, TestbedError

app = typer.Typer(
    name="testbed",
    help="Train real pipelines across emulated datacenters, and compare what is measured with what the model says.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("predict")(predict.predict)
app.command("route")(route.route)
app.command("plan")(plan.plan)
app.command("run")(run.run)
app.command("compare-axes")(compare_axes.compare_axes)
app.command("calibrate")(calibrate.calibrate)
app.command("tune")(tune.tune)
app.command("knee")(knee.knee)
app.command("shell")(shell.shell)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.add_typer(schedule.schedule_app, name="schedule")
app.add_typer(baseline.baseline_app, name="baseline")
app.add_typer(kernel.kernel_app, name="kernel")
app.command("test-determinism")(determinism.determinism)


def _in_paragraphs(commands: typer.Typer) -> None:
    """Help as wide as the terminal: line ends of a docstring are of the code, only its empty lines mean something."""
    for one in commands.registered_commands:
        written = inspect.getdoc(one.callback) or ""
        one.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in written.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _in_paragraphs(group.typer_instance)


_in_paragraphs(app)


_INTERRUPTED = 130
"""What typer makes of Ctrl-C, without a word."""


def main() -> None:
    """Entry point: runs a command and turns our errors, and Ctrl-C, into one line and an exit code."""
    try:
        code = app(prog_name="testbed", standalone_mode=False)
        sys.stdout.flush()
    except TestbedError as error:
        _fail(str(error), error.exit_code)
    except typer.Abort:
        code = _INTERRUPTED
    except TyperException as error:  # of the command line's parser
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed
            sys.exit(ExitCode.BAD_INPUT)
        _fail(str(as_bad_input(error)), ExitCode.BAD_INPUT)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _let_go_of_output()
        _fail(f"{error.filename or 'the output'} cannot be written: {error.strerror}", ExitCode.RUN_FAILED)
    if code == _INTERRUPTED:
        print("interrupted", file=sys.stderr)
        code = ExitCode.RUN_FAILED
    sys.exit(code or ExitCode.OK)


def _let_go_of_output() -> None:
    """Where nobody takes what is left to print, the interpreter would try again, and fail, as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
"""What says that a disk takes no more, wherever it happens."""


def _fail(message: str, code: ExitCode) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass
