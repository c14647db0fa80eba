"""All commands by name. A command's module is imported when it is asked for: to import them all takes 0.1 s."""

from __future__ import annotations

import inspect
from collections import ChainMap
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from testbed import __version__
from testbed.cli.help import HELP_OPTIONS, PRINT_TABLES, GroupedCommand, HelpfulGroup
from testbed.cli.table_formats import with_format
from testbed.files import forget_inputs

COMMANDS = {
    "presets": "presets:presets",
    "predict": "predict:predict",
    "route": "route:route",
    "plan": "plan:plan",
    "run": "run:run",
    "wan": "wan:wan",
    "compare-axes": "compare_axes:compare_axes",
    "calibrate": "calibrate:calibrate",
    "advise": "advise:advise",
    "tune": "tune:tune",
    "study": "study:study",
    "sweep": "study:sweep",
    "knee": "knee:knee",
    "adapt": "adapt:adapt",
    "shell": "shell:shell",
    "report": "report:report",
    "diverge": "diverge:diverge",
    "doctor": "doctor:doctor",
    "test-determinism": "determinism:determinism",
    "schema": "schema:schema",
    "schedule": "schedule:schedule_app",
    "baseline": "baseline:baseline_app",
    "kernel": "kernel:kernel_app",
    "guest": "guest:guest_app",
}
"""Of every command, or group of commands, its module in this package and its name there, as help lists them."""


class _CommandModules(Mapping[str, Any]):
    """The commands as the parser wants them, each made when it is asked for."""

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(f"testbed.cli.{module}"), attribute)
        alone = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=name, cls=HelpfulGroup)
        else:
            alone.command(name)(found)
        _with_help(alone)
        return typer.main.get_group(alone).commands[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS


class _CommandGroup(HelpfulGroup):
    """The commands that the parser was given, before them those that are imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = ChainMap(self.commands, _CommandModules())  # type: ignore[arg-type]  # nothing is ever written to it


app = typer.Typer(
    name="testbed",
    help="Train real pipelines across emulated datacenters, and compare what is measured with what the model says.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=_CommandGroup,
    context_settings={"help_option_names": list(HELP_OPTIONS)},
)


def _with_help(commands: typer.Typer) -> None:
    """Help in our form. Line ends of a docstring are of the code, only its empty lines mean something."""
    for command in commands.registered_commands:
        written = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in written.split("\n\n"))
        command.cls = GroupedCommand
        if command.name in PRINT_TABLES and command.callback is not None:
            command.callback = with_format(command.callback)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _with_help(group.typer_instance)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    forget_inputs()
