"""The command line: parse, call, print. Whatever is slow to import is imported by the command that needs it."""

from __future__ import annotations

import errno
import inspect
import os
import sys
from typing import Annotated

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
from testbed.cli.help import HELP_OPTIONS, GroupedCommand, HelpfulGroup
from testbed.cli.usage import as_bad_input
from testbed.errors import ExitCode, RunFailed
from testbed.failure import failed

app = typer.Typer(
    name="testbed",
    help="Train real pipelines across emulated datacenters, and compare what is measured with what the model says.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=HelpfulGroup,
    context_settings={"help_option_names": list(HELP_OPTIONS)},
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
app.add_typer(schedule.schedule_app, name="schedule", cls=HelpfulGroup)
app.add_typer(baseline.baseline_app, name="baseline", cls=HelpfulGroup)
app.add_typer(kernel.kernel_app, name="kernel", cls=HelpfulGroup)
app.command("test-determinism")(determinism.determinism)


def _with_help(commands: typer.Typer) -> None:
    """Help in our form. Line ends of a docstring are of the code, only its empty lines mean something."""
    for command in commands.registered_commands:
        written = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in written.split("\n\n"))
        command.cls = GroupedCommand
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _with_help(group.typer_instance)


_with_help(app)


_INTERRUPTED = 130
"""What typer makes of Ctrl-C, without a word."""


def main() -> None:
    """Run a command and exit with its code."""
    sys.exit(run_command())


def run_command() -> int:
    """Run a command; returns its exit code. Every error is one line; what no one foresaw is shown with where it was."""
    try:
        code = app(prog_name="testbed", standalone_mode=False)
        sys.stdout.flush()
    except (TyperException, typer.Abort) as error:  # of the command line's parser
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed
            return ExitCode.BAD_INPUT
        if isinstance(error, typer.Abort):
            code = _INTERRUPTED
        else:
            return failed(as_bad_input(error))
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # typer's answer to it; whoever read has seen enough
            return _let_go_of_output(ExitCode.RUN_FAILED)
        return failed(left)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return failed(error)
        failed(RunFailed(f"{error.filename or 'the output'} cannot be written: {error.strerror}"))
        return _let_go_of_output(ExitCode.RUN_FAILED)
    except Exception as error:  # noqa: BLE001 - this is the top of a process
        return failed(error)
    if code == _INTERRUPTED:
        print("interrupted", file=sys.stderr)
        return ExitCode.RUN_FAILED
    return code or ExitCode.OK


def _let_go_of_output(code: int) -> int:
    """Where nobody takes what is left to print, the interpreter would try again, and fail, as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EBADF)
"""What says that a disk takes no more, wherever it happens, or that standard output is closed."""


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass
