"""What `run` and `report` print of the network-wide metric: filled on the routes, predicted, measured; and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from testbed.cli.table_layout import Column, Section, fitted
from testbed.judge.network_metric import CaseFairness, Each, Seen, comparable, same_order
from testbed.units import show_change, show_rates, show_size, show_times


def fairness_tables(cases: Sequence[CaseFairness], width: int) -> list[Table]:
    """The metric, a row per case: of several jobs the worst one's rate. Then what each job has of the network."""
    if not any(case.flows for case in cases):
        return []
    key = Column("case", [case.label for case in cases], left=True)
    worst = [
        [min((rate for rate in side.rates_bps if rate is not None), default=None) for side in both]
        for both in ((case.filled, case.predicted, case.measured) for case in cases)
    ]
    most = [f"{case.measured.most_flows} / {case.filled.most_flows}" for case in cases]
    columns = [Column("flows\nm/p", most), *_rates(worst)]
    if _several(cases):
        jain = [f"{case.measured.jain:.2f} / {case.predicted.jain:.2f}" for case in cases]
        columns.append(Column("Jain index\nm/p", jain))
    tables = fitted(key, [Section(_title(cases), columns)], width)
    return tables + _jobs_tables(cases, width)


def fairness_lines(cases: Sequence[CaseFairness]) -> list[str]:
    """Whether what is measured prefers the same of the cases with the same jobs; why a case has nothing to show."""
    found = []
    if not any(case.flows for case in cases):
        small = any(case.elephants_from for case in cases)
        why = " sends as much as --elephants-from" if small else ": nothing is shared"
        found = [f"two-layer metric: no flow over links{why}"] if cases else []
    elif comparable(cases):
        orders = [
            f"{'as' if same_order(cases, kind) else 'NOT as'} {word}"
            for word, kind in (("filled", lambda case: case.filled), ("predicted", lambda case: case.predicted))
        ]
        found = [f"two-layer metric: measured, it puts the cases in order {' and '.join(orders)}"]
    return found


def _several(cases: Sequence[CaseFairness]) -> bool:
    """Whether several jobs are at work in any of them."""
    return any(len(case.jobs) > 1 for case in cases)


def _title(cases: Sequence[CaseFairness]) -> str:
    least = cases[0].elephants_from
    of = f", flows of {show_size(least)} or more" if least else ""
    whose = "worst job" if _several(cases) else "slowest flow"
    return f"two-layer metric: most flows on a link, rate of the {whose}{of}"


def _jobs_tables(cases: Sequence[CaseFairness], width: int) -> list[Table]:
    several = _several(cases)
    names = [f"{case.label}: {job}" if several else case.label for case in cases for job in case.jobs]
    key = Column("case: job" if several else "case", names, left=True)
    sections = []
    if several:
        each = [
            list(three)
            for case in cases
            for three in zip(case.filled.rates_bps, case.predicted.rates_bps, case.measured.rates_bps, strict=True)
        ]
        sections.append(Section("rate of each job's slowest flow", _rates(each)))
    outcomes = [
        *_both("all-reduce", cases, lambda metric: metric.all_reduce_s),
        *_both("median FCT", cases, lambda metric: metric.fct_median_s),
        *_both("FCT p95", cases, lambda metric: metric.fct_p95_s),
        *_both("FCT p99", cases, lambda metric: metric.fct_p99_s),
        *_both("worst FCT", cases, lambda metric: metric.fct_worst_s),
    ]
    sections.append(Section("reductions, and flow completion times of messages", outcomes))
    return [table for section in sections if section.columns for table in fitted(key, [section], width)]


def _rates(rows: Sequence[Sequence[float | None]]) -> list[Column]:
    """`rows` of (filled, predicted, measured)."""
    unit, cells = _bare(show_rates([rate for row in rows for rate in row]))
    off = ["-" if a is None or b is None else show_change(b / a - 1, 2) for _, a, b in rows]
    headings = (f"filled\n{unit}", "\npredicted", "\nmeasured")
    rates = (Column(name, cells[place::3], unit=unit or None) for place, name in enumerate(headings))
    return [*rates, Column("\nerror", off)]


def _both(what: str, cases: Sequence[CaseFairness], of: Callable[[Seen], Each]) -> list[Column]:
    """Predicted / measured; nothing where no job has it, "-" in a case of an earlier version."""
    pairs = []
    for case in cases:
        unknown = [None] * len(case.jobs)
        pairs += list(zip(of(case.predicted) or unknown, of(case.measured) or unknown, strict=True))
    if all(value is None for pair in pairs for value in pair):
        return []
    unit, cells = _bare(show_times([value for pair in pairs for value in pair]))
    both = [f"{measured} / {predicted}" for predicted, measured in zip(cells[0::2], cells[1::2], strict=True)]
    return [Column(f"{what}\nm/p, {unit}", both, unit=unit or None)]


def _bare(shown: Sequence[str]) -> tuple[str, list[str]]:
    """The unit that a column has, and its numbers without it."""
    unit = next((text.partition(" ")[2] for text in shown if text != "-"), "")
    return unit, [text.partition(" ")[0] for text in shown]
