"""CrossPipe's Tables 5 and 6 (USENIX ATC'25) beside what our model predicts, with early and with late receives.

    python benchmarks/published_tables.py [--seconds 20] [--schedules 1F1B ZBH1 ZBV UDSub UD Wave]

Published: T_F = 0.038 s, P = 8, memory 1x or 2x of P microbatches in flight; case 1: M = 16, 1x; case 2: M = 32, 1x,
layer-wise recompute; case 3: M = 32, 2x. UD and Wave are solvers' there and here; ours stops at 1 % or after --seconds.

Inferred by us, not published: T_I and T_W, at equal shares; their sum is fitted per schedule on its zero-delay cells of
cases 1 and 3 alone, so every cell with delay, and all of case 2, is a prediction. Recompute makes T_I longer by T_F
(1F1B's zero-delay cells say so: 0.174 / (39/32) - 0.151 / (23/16) = 0.038) and keeps 2/34 of a microbatch's memory
until then (plan.KEPT_WHEN_RECOMPUTING; the share is GeoPipe's, not CrossPipe's). Units: seconds per microbatch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.model.simulate import makespan
from testbed.pipeline.problem import Problem, Receives, uniform
from testbed.plan.costs import KEPT_WHEN_RECOMPUTING
from testbed.progress import Lines
from testbed.schedule.registry import FAMILIES, Generated, generate_proven

TABLES = ROOT / "studies/data/crosspipe_tables.csv"
FORWARD_S = 0.038
RANKS = 8
CUTS = {2: (3,), 4: (1, 3, 5)}


class Case(NamedTuple):
    """What a column group of the tables was measured with."""

    microbatches: int
    memory: float
    """Microbatches in flight."""
    recompute: bool


CASES = {1: Case(16, 8.0, False), 2: Case(32, 8.0, True), 3: Case(32, 16.0, False)}
OURS = {
    "1F1B": "1f1b",
    "ZBH1": "zb-h1",
    "ZBV": "zb-v",
    "UDSub": "crosspipe-greedy",
    "UD": "crosspipe-ud",
    "Wave": "crosspipe-wave",
}
"""Published column -> our schedule."""

WAYS: tuple[Receives, ...] = ("early", "late", "late-free-notice")
GRID_S = np.arange(0.040, 0.100, 0.0005)
WIDE = 170
"""Columns of a screen that the tables take."""
SAMPLES_S = (0.055, 0.070, 0.085)
"""Sums of T_I and T_W that a solver is asked for; in between its zero-delay time is interpolated."""


def problem(name: str, row: pd.Series, backward_s: float) -> Problem:
    """A published cell as a scheduling problem."""
    case = CASES[row["case"]]
    asked = uniform(
        RANKS,
        case.microbatches,
        forward_s=FORWARD_S,
        input_s=backward_s / 2 + (FORWARD_S if case.recompute else 0.0),
        weight_s=backward_s / 2,
        delay_s=row["lat_ratio"] * FORWARD_S,
        wire_s=row["bw_ratio"] * FORWARD_S,
        cuts=CUTS[row["n_dc"]],
        memory=case.memory,
        stage_to_rank=FAMILIES[name].stage_to_rank(RANKS),
    )
    if not case.recompute:
        return asked
    return replace(
        asked,
        activation=tuple(share * KEPT_WHEN_RECOMPUTING for share in asked.activation),
        input_memory=tuple(share * (1.0 - KEPT_WHEN_RECOMPUTING) for share in asked.activation),
    )


def scheduled(name: str, asked: Problem, seconds: float) -> Generated:
    """Our schedule for a cell; a solver may take so many seconds."""
    options: dict[str, Any] = {"time_limit_s": seconds} if FAMILIES[name].solver else {}
    return generate_proven(name, asked, **options)


def per_microbatch(asked: Problem, made: Generated, way: Receives) -> float:
    """Predicted seconds per microbatch."""
    return makespan(asked, made.schedule, receives=way) / asked.n_microbatches


def fitted_backward(name: str, cells: pd.DataFrame, seconds: float) -> float:
    """T_I + T_W that fits the zero-delay cells best (least squares over a grid of 0.5 ms).

    Without delay the number of datacenters is the same to us, so each case is scheduled once per sum.
    """
    zero = cells[(cells["lat_ratio"] == 0) & (cells["bw_ratio"] == 0) & (cells["case"] != 2)]
    asked_s = SAMPLES_S if FAMILIES[name].solver else GRID_S
    errors = np.zeros(len(GRID_S))
    for _, same in zero.groupby("case"):
        asked = [problem(name, same.iloc[0], b) for b in asked_s]
        found = [per_microbatch(one, scheduled(name, one, seconds), "early") for one in asked]
        predicted = np.interp(GRID_S, asked_s, found)
        for published in same["seconds_per_microbatch"]:
            errors += (predicted - published) ** 2
    return float(GRID_S[int(np.argmin(errors))])


def predict(row: pd.Series, backward_s: float, seconds: float) -> dict[str, float]:
    """A cell's predicted seconds per microbatch, one per way of receiving, and the solver's gap (NaN without one)."""
    name = OURS[row["schedule"]]
    asked = problem(name, row, backward_s)
    made = scheduled(name, asked, seconds)
    gap = made.proof.gap if made.proof else float("nan")
    return {"gap": gap} | {way: per_microbatch(asked, made, way) for way in WAYS}


def spearman(a: pd.Series, b: pd.Series) -> float:
    """Rank correlation."""
    return float(np.corrcoef(a.rank(), b.rank())[0, 1])


def show_cells(frame: pd.DataFrame) -> None:
    """Print every cell."""
    rows = [
        (
            *(f"{row[key]:g}" for key in ("table", "n_dc", "lat_ratio", "bw_ratio", "case")),
            row["schedule"],
            "" if np.isnan(row["gap"]) else f"{row['gap']:.1%}",
            f"{row['seconds_per_microbatch']:.3f}",
            *(text for way in WAYS for text in (f"{row[way]:.3f}", f"{row[f'{way} error']:+.1%}")),
        )
        for _, row in frame.iterrows()
    ]
    known = ("table", "DCs", "lat", "bw", "case", "schedule", "gap", "published")
    columns = (*known, *(name for way in WAYS for name in (way, "error")))
    show_table("every cell, seconds per microbatch; gap: our solver's", columns, rows, WIDE)


def fits_of(group: pd.DataFrame) -> dict[str, str]:
    """Per way of receiving: rank correlation, and of cells with delay the mean error and the worst."""
    delayed, found = group[group["lat_ratio"] > 0], dict[str, str]()
    for way in WAYS:
        error = delayed[f"{way} error"]
        worst = float(error.iloc[int(error.abs().argmax())])
        rank = spearman(group["seconds_per_microbatch"], group[way])
        found[way] = f"{rank:.3f}  {error.abs().mean():.1%}  {worst:+.1%}"
    return found


def by_schedule(frame: pd.DataFrame) -> Iterator[tuple[str, bool, pd.DataFrame]]:
    """The cells of every schedule, with recompute (case 2) and without."""
    for (name, recompute), group in frame.groupby(["schedule", "recompute"], sort=False):
        yield str(name), bool(recompute), group


def show_schedules(frame: pd.DataFrame) -> None:
    """Print a row per schedule."""
    rows = []
    for name, recompute, group in by_schedule(frame):
        gap = "" if group["gap"].isna().all() else f"{group['gap'].mean():.1%}  {group['gap'].max():.1%}"
        fitted, title = f"{group['backward'].iloc[0]:.4f} s", f"{name}, recompute" if recompute else name
        rows.append((title, len(group), fitted, gap, *fits_of(group).values()))
    rows.append(("all", len(frame), "", "", *fits_of(frame).values()))
    fits = (f"{way}: Spearman, mean |error|, worst" for way in WAYS)
    columns = ("schedule", "cells", "T_I+T_W", "gap, mean and worst", *fits)
    show_table("by schedule (errors over cells with delay only)", columns, rows, WIDE)


def claims_of(frame: pd.DataFrame) -> list[Claim]:
    """How well receiving early, and late with a free notice, tells the tables, with recompute, of which nothing was
    fitted, and without; late with a notice that takes its time is on the screen alone, as it tells them worst."""
    claims = []
    for recompute in sorted({recompute for _, recompute, _ in by_schedule(frame)}):
        for way in (each for each in WAYS if each != "late"):
            told = []
            for name, group in ((name, group) for name, case, group in by_schedule(frame) if case == recompute):
                rank, error, _ = fits_of(group)[way].split()
                gap = "" if group["gap"].isna().all() else f" ({group['gap'].max():.1%})"
                told.append(f"{name} {rank} / {error}{gap}")
            what = f"CrossPipe's Tables 5 and 6{', recompute' * recompute}, {way}: Spearman / mean error (solver's gap)"
            claims.append(Claim(what, "(report)", ", ".join(told)))
    return claims


def main() -> int:
    """Print every cell and a summary."""
    parser = options.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="the solver's time limit per cell")
    parser.add_argument("--schedules", nargs="+", choices=list(OURS), default=list(OURS))
    arguments = parser.parse_args()
    published = pd.read_csv(TABLES)
    covered = published[published["schedule"].isin(arguments.schedules)].copy()
    cells = []
    with Lines(quiet=False).step("cells", total=len(covered)) as step:
        for column in arguments.schedules:
            mine = covered[covered["schedule"] == column]
            backward = fitted_backward(OURS[column], mine, arguments.seconds)
            for _, row in mine.iterrows():
                known = {**row, "backward": backward, "recompute": CASES[row["case"]].recompute}
                cells.append(known | predict(row, backward, arguments.seconds))
                step.advance()
    frame = pd.DataFrame(cells)
    for way in WAYS:
        frame[f"{way} error"] = frame[way] / frame["seconds_per_microbatch"] - 1
    show_cells(frame)
    show_schedules(frame)
    return finish(arguments, Topic.STUDIES, claims_of(frame), clock="none")


if __name__ == "__main__":
    sys.exit(main())
