"""Options that benchmarks share, and their help in 80 columns."""

from __future__ import annotations

import argparse
import copy
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
WIDTH = 80

Kind = TypeVar("Kind")


class Help(argparse.RawDescriptionHelpFormatter):
    """A module's docstring as it is, in 80 columns; indented lines are commands, deeper ones go on with them.

    An option's choices stand in its help, where they can be folded.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=WIDTH)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(map(_filled, text.split("\n\n")))

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        name = action.metavar if isinstance(action.metavar, str) else default_metavar
        return lambda count: (name,) * count

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def add_argument(self, action: argparse.Action) -> None:
        if action.choices is not None:
            choices = ", ".join(map(str, action.choices))
            action = copy.copy(action)
            action.help = f"{action.help}; {choices}" if action.help else choices
        super().add_argument(action)


def _filled(paragraph: str) -> str:
    if not paragraph.startswith("    "):
        items = re.split(r"\n(?=\* )", paragraph)
        return "\n".join(
            textwrap.fill(item, WIDTH - 2, subsequent_indent="  " * item.startswith("* ")) for item in items
        )
    commands = re.split(r"\n {4}(?! )", paragraph[4:])
    return "\n".join(
        textwrap.fill(one, WIDTH - 2, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
        for one in (" ".join(command.split()) for command in commands)
    )


def parser(document: str | None) -> argparse.ArgumentParser:
    """For a benchmark with that docstring; every one may keep its figures."""
    made = argparse.ArgumentParser(description=document, formatter_class=Help)
    made.add_argument(
        "--record", nargs="?", const="", metavar="NAME", help="keep the figures in results/figures/NAME.json"
    )
    return made


def listed(kind: Callable[[str], Kind]) -> Callable[[str], list[Kind]]:
    """The type of an option that is a list with commas: `type=listed(int)`."""

    def values(text: str) -> list[Kind]:
        return [kind(word) for word in text.split(",")]

    values.__name__ = f"list of {kind.__name__}"  # what argparse says of a wrong one
    return values


def add_out(made: argparse.ArgumentParser, name: str, *, recorded: bool = True) -> None:
    """--out: where results go, and --recorded: judge what lies there, of a benchmark that can."""
    made.add_argument("--out", type=Path, default=ROOT / "results" / name, help="where results go")
    if recorded:
        made.add_argument("--recorded", action="store_true", help="judge what --out has by today's model, no boot")


def add_per_boot(made: argparse.ArgumentParser, per_boot: int) -> None:
    """--per-boot: the guest ends after so many plans, and the next one begins."""
    made.add_argument("--per-boot", type=int, default=per_boot, help="plans in one boot of the virtual clock")


def add_drawn(
    made: argparse.ArgumentParser,
    name: str,
    *,
    plans: int,
    per_boot: int,
    seed: int = 1,
    schedules: int | None = None,
    words: Sequence[str] = ("--plans",),
) -> None:
    """The options of a benchmark that draws its plans by seed and number; `schedules`: how many, if it is asked."""
    made.add_argument(*words, dest="plans", type=int, default=plans, metavar="N", help="how many are taken")
    made.add_argument("--first", type=int, default=0, help="number of the first plan")
    made.add_argument("--seed", type=int, default=seed)
    if schedules is not None:
        made.add_argument("--schedules", type=int, default=schedules, help="per plan")
    add_per_boot(made, per_boot)
    add_out(made, name)


def numbers(arguments: argparse.Namespace) -> range:
    """Those of the plans that are asked for."""
    return range(arguments.first, arguments.first + arguments.plans)
