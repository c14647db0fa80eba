"""Options that benchmarks share, and their help in 80 columns."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH = 80


class Help(argparse.RawDescriptionHelpFormatter):
    """A module's docstring as it is, in 80 columns; indented lines are commands, deeper ones go on with them."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(map(_filled, text.split("\n\n")))


def _filled(paragraph: str) -> str:
    if not paragraph.startswith("    "):
        return textwrap.fill(paragraph, WIDTH - 2)
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


def add_out(made: argparse.ArgumentParser, name: str) -> None:
    """--out: where results go, and --recorded: judge what lies there."""
    made.add_argument("--out", type=Path, default=ROOT / "results" / name, help="where results go")
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
    words: Sequence[str] = ("--plans",),
) -> None:
    """The options of a benchmark that draws its plans by seed and number."""
    made.add_argument(*words, dest="plans", type=int, default=plans, metavar="N", help="how many are taken")
    made.add_argument("--first", type=int, default=0, help="number of the first plan")
    made.add_argument("--seed", type=int, default=seed)
    add_per_boot(made, per_boot)
    add_out(made, name)


def numbers(arguments: argparse.Namespace) -> range:
    """Those of the plans that are asked for."""
    return range(arguments.first, arguments.first + arguments.plans)
