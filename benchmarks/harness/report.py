"""What campaigns print, and what they claim: worst rows, what is wrong with which, how far off, trusted, ranked."""

from __future__ import annotations

import json
import math
import statistics
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.boots import Taken
from harness.options import WIDTH
from harness.record import Claim, Topic, finish
from harness.rows import Row

Columns = Mapping[str, Callable[[Row], Any]]
"""What a benchmark shows of a row beside its plan, by title."""


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], width: int = WIDTH) -> None:
    """Print a table in 80 columns or more; names that are too long for that go on in further lines."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("plan", "error", "trusted"))
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=width).print(table)


def sizes(taken: Taken) -> Columns:
    """Stages, microbatches and bytes of a message, as columns of plans that were written as files."""
    return {
        "P": lambda row: taken.workload(row.plan)["parallelism"]["pipeline"],
        "M": lambda row: taken.workload(row.plan)["microbatches"],
        "message": lambda row: taken.workload(row.plan)["message"],
    }


def show_worst(taken: Taken, columns: Columns | None = None, most: int = 12) -> None:
    """Print the rows that are furthest off, then whatever was refused, failed, or is not trusted."""
    own, rows = columns or {}, []
    for row in taken.rows[:most]:
        beyond = f"{row.missed:.4%}" if row.width else ""
        shown = f"{row.error:+.4%}", beyond, "yes" if row.trusted else "NO"
        rows.append((row.plan, row.label, *(show(row) for show in own.values()), *shown))
    show_table("furthest off", ("plan", "schedule", *own, "error", "off range", "trusted"), rows)
    for reason, count in Counter(text.partition("/")[0][:60] for text in taken.refused.values()).most_common():
        print(f"refused {count} x {reason}")
    for row in taken.untrusted:
        print(f"untrusted: {row.plan}, {row.label}, off by {row.missed:.4%}: {'; '.join(row.found['reasons'])}")
    if taken.failed:
        print(f"without a result: {', '.join(taken.failed)}")


def show_run(title: str, document: Mapping[str, Any], more: Callable[[Mapping[str, Any]], str] = lambda _: "") -> None:
    """Print a run's schedules with times, errors, what there is `more` of a row, verdicts and reasons."""
    print(title + ("" if document["ranking_as_predicted"] else ", ranking NOT as predicted"))
    for row in document["schedules"]:
        label = f"{row['label']} of {row['job']}" if row.get("job") else row["label"]
        measured = f"{1e3 * row['measured_s']:8.2f} ms +- {1e3 * row['measured_iqr_s']:6.2f}"
        error = f"predicted {1e3 * row['predicted_s']:8.2f} ms, error {row['error']:+.2%}{more(row)}"
        print(f"  {label:18} {measured}, {error}{'' if row['trusted'] else ', UNTRUSTED'}")
        for reason in row["reasons"]:
            print(f"    {reason}")
    sys.stdout.flush()


def truth(
    claim: str,
    taken: Taken,
    limit: float,
    rows: Sequence[Row] | None = None,
    *,
    median: float | None = None,
    ranked: bool = False,
) -> Claim:
    """That rows (all, if none are named) are trusted and within a limit of their prediction or range.

    Without those that the model does not cover, which are counted: what tensor ranks exchange does not fit into slots.
    `median`: a limit for the median as well; `ranked`: whether their plans must rank schedules as predicted.
    """
    every = taken.rows if rows is None else rows
    judged = [row for row in every if row.covered]
    missed = [row.missed for row in judged] or [math.inf]
    over, untrusted = sum(share > limit for share in missed), sum(not row.trusted for row in judged)
    middle, plans = statistics.median(missed), {row.plan for row in judged}
    misranked = sorted(plans.intersection(taken.misranked)) if ranked else []
    fine = not (over or untrusted or misranked) and (median is None or middle <= median)
    asked = f"<= {limit:.2%}" + (f", median <= {median:.2%}" if median else "") + ", trusted" + ", ranked" * ranked
    got = f"{len(judged)} runs: worst {max(missed):.4%}, median {middle:.4%}, {over} beyond, {untrusted} untrusted"
    got += f", {sum(row.width > 0 for row in judged)} ranges"
    if len(judged) < len(every):
        got += f"; {len(every) - len(judged)} more not in the model"
    if misranked:
        got += f"; not ranked as predicted: {', '.join(misranked[:4])}{', ...' if len(misranked) > 4 else ''}"
    worst = max(missed) if judged else None
    return _claim(claim, taken, asked, got if judged else "nothing", fine, worst, "share of the prediction")


def by_receives(what: str, taken: Taken, limit: float) -> list[Claim]:
    """The same, and ranked, of plans with early receives and of those with late ones, if there are any."""
    when = {name: taken.workload(name)["receives"] for name in taken.comparisons}
    each = {way: [row for row in taken.rows if when[row.plan] == way] for way in ("early", "late")}
    return [truth(f"{what}, {way} receives", taken, limit, rows, ranked=True) for way, rows in each.items() if rows]


def count(claim: str, taken: Taken, wrong: int, asked: str, got: str) -> Claim:
    """That nothing is wrong, whatever a benchmark counts."""
    return _claim(claim, taken, asked, got, not wrong, wrong, "wrong")


def _claim(claim: str, taken: Taken, asked: str, got: str, passed: bool, value: float | None, unit: str) -> Claim:
    refused = f"; {len(taken.refused)} more plans refused" if taken.refused else ""
    of = taken.asked - len(taken.refused)
    return Claim(claim, asked, got + refused, passed and bool(taken.rows), value, unit, len(taken.comparisons), of)


def close(arguments: Namespace, topic: Topic, taken: Taken, claims: Sequence[Claim], *, clock: str = "virtual") -> int:
    """Keep all rows in --out/summary.json and the claims as asked for; the exit code."""
    if not arguments.recorded:
        rows = [[row.plan, row.found] for row in taken.rows]
        Path(arguments.out / "summary.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    directories = [taken.out / name for name in taken.comparisons]
    return finish(arguments, topic, claims, clock=clock, directories=directories)
