"""Every option beside every other one: plans that cover all pairs of them, measured on the virtual clock.

    python benchmarks/option_pairs.py [--later] [--plans 117] [--first 0] [--seed 1] [--schedules 3] [--per-boot 12]
        [--light] [--recorded] [--out DIR]

A covering array over the options of topology, workload and command: each pair of values that may stand together does
so in a plan. Numbers (delays, rates, slots, sizes) are drawn by seed, as is the array: another seed gives other plans.
Where one array has fewer than --plans rows, the next one goes on. A combination that the command line refuses is
counted with its reason, an error without one is a fault. A row is a fault as well where it is trusted and further than
0.05 % from its prediction (or from the nearer end of its range), or untrusted though nothing disturbed it, unless it
says that the model does not cover it. Prints all
faults, the share of pairs that were measured, and the worst rows; exit code 1 where there is a fault.

--later is an array of all pairs in which one is an option that was built after those of the first array: a job that
recovers from a neighbour's memory, from datacenters that are cut off, or with the replicas that are left, a controller
for routes, stages or starts. Behind it comes another one, of links with loss or jitter, which the model leaves out.
Goodput is held against what was foretold as well, to 0.05 %. And of every pair of values that is refused `testbed plan`
is asked: exit code 2, one line, and no plan.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import yaml
from harness import boots, options, report
from harness.record import Claim, Topic, each
from parts.covering_array import Options, Pair, Row, covering_array, pairs_in, pairs_of
from parts.drawn_options import Drawn
from parts.plan_options import (
    BY_CHANCE,
    CHANCE,
    EVERY,
    LATER,
    NEEDS,
    NEW,
    OPTIONS,
    SIMPLE,
    impossible,
    possible,
    refused,
)

from testbed.cli.options import Enforcement
from testbed.cli.plan import PlanOptions, enforced, scheduled_and_routed
from testbed.errors import ExitCode
from testbed.plan.plan import Clock, Plan
from testbed.planning import resolve
from testbed.planning.light import lighter
from testbed.vm import command

TARGET = 0.0005
FORESEEN = (
    "iteration times spread by",
    "something changed in iterations",
    "of the actions did not fit into their slots",
    "longer than the slot",
)
"""Why a row is rightly not trusted where packets are lost, which workers that connect again send as well, or where
tensor ranks send more than a slot has room for."""


class Cell(NamedTuple):
    """A plan of an array."""

    number: int
    options: Row
    later: bool = False


class Array(NamedTuple):
    """What a covering array is of."""

    name: str
    options: Options
    new: Mapping[str, Set[str]]
    """Values of which each of its pairs has one; of all pairs where there are none."""

    def wanted(self) -> set[Pair]:
        """Its pairs, those that may stand together."""
        pairs = {(a, x, b, y) for a, x, b, y in pairs_of(self.options) if possible([(a, x), (b, y)])}
        return {pair for pair in pairs if not self.new or self._is_new(*pair)}

    def _is_new(self, a: str, x: object, b: str, y: object) -> bool:
        return x in self.new.get(a, ()) or y in self.new.get(b, ())

    def rows(self, seed: int, number: int) -> list[Row]:
        """Drawn by seed and number."""
        return covering_array(self.options, possible, self.wanted(), Random(f"{self.name}/{seed}/{number}"))


FIRST = (Array("pairs", OPTIONS, {}),)
LATER_ON = (Array("pairs/later", LATER, NEW), Array("pairs/by chance", BY_CHANCE, CHANCE))


def cells(seed: int, plans: int, first: int, *, later: bool = False) -> list[Cell]:
    """So many rows of one array after the other, from a number on."""
    rows: list[Row] = []
    arrays, drawn = LATER_ON if later else FIRST, 0
    while len(rows) < first + plans:
        rows += arrays[drawn % len(arrays)].rows(seed, drawn // len(arrays))
        drawn += 1
    return [Cell(index, rows[index], later) for index in range(first, first + plans)]


def refused_rows() -> dict[str, Row]:
    """By the pair of values for which it is refused, all else as simple as these allow."""
    found: dict[str, Row] = {}
    for a, x, b, y in sorted(pairs_of(EVERY), key=repr):
        pair = {a: x, b: y}
        if refused(pair) and not impossible(pair):
            needed = {**NEEDS.get(f"{a}={x}", {}), **NEEDS.get(f"{b}={y}", {})}
            found[f"{a}={x}, {b}={y}"] = {**SIMPLE, **needed, **pair}
    return found


def files_of(drawn: Drawn, name: str, out: Path) -> tuple[list[Path], Path | None]:
    """Topology and workloads as files, and one of background traffic where there is any."""
    files = []
    for place, document in enumerate((drawn.topology(), *drawn.workloads())):
        files.append(out / f"{name}.{f'workload-{place}' if place else 'topology'}.yaml")
        files[-1].write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    if not (rows := drawn.traffic()):
        return files, None
    background = out / f"{name}.traffic.csv"
    background.write_text("\n".join(map(",".join, [("from", "to", "rate", "at"), *rows])), encoding="utf-8")
    return files, background


def plan_of(cell: Cell, seed: int, schedules: int, out: Path) -> Plan:
    """A cell as files, and as the plan that the command line makes of them. Raises BadInput."""
    drawn = Drawn(cell.options, Random(f"{'later' if cell.later else 'pairs'}/{seed}/plan/{cell.number}"), schedules)
    files, background = files_of(drawn, name_of(cell), out)
    words = drawn.words()
    made = resolve.load_plan(*files, events=words.get("--event", ()), background=background)
    made = resolve.with_clock(made, Clock("virtual"))
    made = replace(made, rounds="free") if "--rounds" in words else made
    made = enforced(made, Enforcement(words["--enforce"]) if "--enforce" in words else None)
    given = {name.removeprefix("--"): value for name, value in words.items()}
    asked = PlanOptions(None, **{name: given[name] for name in _OF_SCHEDULES if name in given})
    return scheduled_and_routed(made, asked, files[1:], quiet=True, strict=False, to_train=True)[0]


_OF_SCHEDULES = (
    *("policy", "lose", "arrive", "depart", "alone", "adapt", "vary"),
    *("checkpoint", "elastic", "failure", "chaos"),
)


def refusal(row: Row, out: Path) -> str | None:
    """What is wrong with how `testbed plan` refuses a row; None where it says in one line why, and writes nothing."""
    drawn = Drawn(row, Random("refused"), 1)
    files, background = files_of(drawn, "refused", out)
    line = [*map(str, files), *(["--background", str(background)] if background else [])]
    for option, given in drawn.words().items():
        for text in given if isinstance(given, list) else [given]:
            line += [option] if text is True else [option, text]
    plan = out / "plan.json"
    code, document, said = boots.run_testbed("plan", *line, "--clock", "virtual", "--out", str(plan))
    if code == ExitCode.BAD_INPUT and len(said.splitlines()) == 1 and document is None and not plan.exists():
        return None
    plan.unlink(missing_ok=True)
    return f"exit code {code}, {'a plan' if document else 'no plan'}, {said or 'not a word'}"


def refusals() -> Claim:
    """Of every pair of values that may not stand together."""
    rows, wrong = refused_rows(), {}
    with TemporaryDirectory() as scratch:
        for name, row in rows.items():
            if said := refusal(row, Path(scratch)):
                wrong[name] = said
    for name, said in wrong.items():
        print(f"FAULT {name}: {said}")
    claim = "pairs of options that exclude each other: refused with exit code 2, in one line"
    return each(claim, len(wrong), len(rows), unit="pairs")


def training(cell: Cell, seed: int, schedules: int, light: bool, out: Path) -> command.GuestTraining:
    """A cell as files and plan, and where its run goes. Raises BadInput."""
    plan = plan_of(cell, seed, schedules, out)
    return command.GuestTraining(lighter(plan)[0] if light else plan, out / name_of(cell), cell.options["shaper"])


def name_of(cell: Cell) -> str:
    """Of its results."""
    return f"{'later' if cell.later else 'plan'}-{cell.number:03d}"


def pairs(chosen: Sequence[Cell]) -> set[Pair]:
    """All pairs of values that these plans have."""
    return {pair for cell in chosen for pair in pairs_in(cell.options)}


def claims_of(taken: boots.Taken, chosen: Sequence[Cell]) -> list[Claim]:
    """Print every fault with the options of its plan; how far off, what is wrongly untrusted, which pairs were met."""
    options_of = {name_of(cell): json.dumps(cell.options) for cell in chosen}
    for row in taken.rows:
        if row.covered and (row.missed > TARGET or not row.trusted):
            print(f"FAULT {row.plan}: {row.label} {row.error:+.4%}\n  {options_of[row.plan]}")
    met = pairs([cell for cell in chosen if name_of(cell) in taken.comparisons])
    share = f"{len(met)} of {len(pairs(chosen))}"
    later = any(cell.later for cell in chosen)
    what = "all pairs of options, one of them built later" if later else "all pairs of options (a covering array)"
    return [
        report.truth(what, taken, TARGET),
        Claim("pairs of options that were measured together", "(report)", share, value=float(len(met)), unit="pairs"),
    ]


def claims_of_later(taken: boots.Taken) -> list[Claim]:
    """What recovered, and what was looked at; rows that the model does not cover are right in all else."""
    apart = [row for row in taken.rows if not row.covered]
    covered = taken.comparisons.keys() - {row.plan for row in apart}
    entries = {
        name: taken.comparisons[name]["goodput"][0] for name in covered if taken.comparisons[name].get("goodput")
    }
    late = sum("restarts_late" in one for one in entries.values())  # which says itself that it is not as foretold
    wide = {row.plan: row.width for row in taken.rows}  # goodput is foretold of the usual order alone
    off = {
        name: max(0.0, abs(one["measured"]["goodput"] / one["predicted"]["goodput"] - 1) - wide[name])
        for name, one in entries.items()
        if "restarts_late" not in one
    }
    for name, share in off.items():
        if share > TARGET:
            print(f"FAULT {name}: goodput {share:.4%} off")
    failures, worst = sum(one["failures"] for one in entries.values()), max(off.values(), default=0.0)
    adapting = [one["adaptation"]["iterations"] for one in taken.comparisons.values() if one.get("adaptation")]
    looked = sum(any(row["looked_at"] for row in rows) for rows in adapting)
    swapped = sum(any(row["swapped_to"] is not None for row in rows) for rows in adapting)
    wrong = [row for row in apart if any(not _foreseen(said) for said in row.found["reasons"])]
    for row in wrong:
        print(f"FAULT {row.plan}: {row.label}, not in the model: {'; '.join(row.found['reasons'])}")
    got = f"{len(off)} trainings, worst {worst:.4%}; {late} more said that restarts were longer than their slot; "
    got += f"{failures} failures"
    return [
        Claim(
            "the same: goodput as foretold, beyond iterations' ranges",
            f"<= {TARGET:.2%}",
            got,
            worst <= TARGET,
            worst,
            "share",
        ),
        each(
            "the same: what the model leaves out, as loss and jitter: training, links and counters as they should be",
            len(wrong),
            len(apart),
            unit="runs",
        ),
        Claim(
            "the same: jobs with a controller that swapped, and that looked at a route they had left",
            "(report)",
            f"{swapped} and {looked} of {len(adapting)}",
            value=float(looked),
            unit="jobs",
        ),
    ]


def _foreseen(reason: str) -> bool:
    return any(words in reason for words in FORESEEN)


def add_rows(parser: ArgumentParser, name: str, *, plans: int, schedules: int) -> None:
    """The options of a benchmark that draws rows of the arrays."""
    options.add_drawn(parser, name, plans=plans, per_boot=12)
    parser.add_argument("--schedules", type=int, default=schedules, help="per plan, the row's own one among them")
    parser.add_argument("--later", action="store_true", help="pairs with an option that was built later")
    parser.add_argument("--light", action="store_true", help="light models, with the same messages and times")


def main() -> int:
    """Measure the array; 1 where there is a fault, 0 otherwise."""
    parser = options.parser(__doc__)
    add_rows(parser, "option-pairs", plans=117, schedules=3)
    asked = parser.parse_args()
    chosen = cells(asked.seed, asked.plans, asked.first, later=asked.later)
    taken = boots.take(
        asked, {name_of(cell): partial(training, cell, asked.seed, asked.schedules, asked.light) for cell in chosen}
    )
    report.show_worst(taken, most=10)
    claims = claims_of(taken, chosen)
    if asked.later:
        claims += [*claims_of_later(taken), refusals()]
    return report.close(asked, Topic.TRUTH, taken, claims)


if __name__ == "__main__":
    sys.exit(main())
