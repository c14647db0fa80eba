"""Make docs/figures.md from the figure records in results/figures: what is claimed now, with its limit and its origin.

    python benchmarks/figures.py [--check]

A benchmark writes its record with --record. With --check nothing is written, and exit code 1 says that the page is not
what the records say.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from harness.options import ROOT, Help
from harness.record import FIGURES, Figure, Topic, read

PAGE = ROOT / "docs/figures.md"
HEAD = """# Figures

What this testbed claims, made by `python benchmarks/figures.py` from the records in `results/figures/`: do not edit\
 it. {counts}
*part*: what was taken keeps its limit, but fewer cases than asked were taken; *info*: there is no limit. The last
column says commit and date of what was measured, \\* that the row was copied from an earlier page and not taken since.
{machines}\
 Times on the virtual clock do not depend on the machine's load; times and verdicts on the real clock (`real`) do.
"""
STAR, ESCAPED = " \\*", "\\|"
SHOWN = {"yes": "yes", "MISSED": "**MISSED**", "part": "*part*", "info": "*info*"}


def records() -> list[Figure]:
    """All that is recorded, file by file in the order of their names."""
    return [figure for path in sorted(FIGURES.glob("*.json"), key=lambda path: path.stem) for figure in read(path)]


def page(figures: Sequence[Figure]) -> str:
    """The page of these figures."""
    states = Counter(figure.claim.state for figure in figures)
    said = f"{len(figures)} claims: {states['yes']} kept, **{states['MISSED']} missed**, {states['part']} kept in part"
    lines = [HEAD.format(counts=f"{said}, {states['info']} without a limit.", machines=_machines(figures))]
    for topic in Topic:
        mine = [figure for figure in figures if figure.topic == topic]
        if mine:
            lines += [f"## {topic}", "| | claim | asked | got | command | taken |", "| --- " * 6 + "|"]
            lines += [*map(_row, mine), ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(figure: Figure) -> str:
    claim, origin = figure.claim, figure.origin
    cases = "" if claim.whole else f" ({claim.taken:,} of {claim.of:,} cases)"
    clock = f", {origin.machine['clock']}" if origin.machine["clock"] == "real" else ""
    taken = f"`{origin.commit}` {origin.date}{clock}{STAR if origin.carried else ''}"
    cells = (SHOWN[claim.state], claim.claim, claim.asked, claim.got + cases, f"`{origin.command}`", taken)
    return f"| {' | '.join(cell.replace('|', ESCAPED) for cell in cells)} |"


def _machines(figures: Sequence[Figure]) -> str:
    """The machines, each once, whatever the clock."""
    found = [figure.origin.machine for figure in figures]
    each = {f"{one['cores']} cores, {one['memory_gib']:g} GiB, Linux {one['kernel']}": None for one in found}
    return f"Machines: {'; '.join(each)}."


def main() -> int:
    """1 with --check where the page is another one, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument("--check", action="store_true", help="write nothing")
    made = page(records())
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != made)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
