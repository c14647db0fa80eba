"""What `calibrate` and `doctor` print: links, messages and machine, asked against found."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from testbed.cli.run_tables import show_milliseconds
from testbed.cli.table_layout import Cell, Column, Section, fitted, indented
from testbed.units import show_change, show_rates, show_size, show_times

if TYPE_CHECKING:
    from testbed.lab.doctor import FeatureCheck


_MARK_WIDTH = len("no, optional")
_YES, _NO = Text("yes", style="green"), Text("NO", style="bold red")


def link_tables(title: str, checks: Sequence[Mapping[str, Any]], width: int) -> list[RenderableType]:
    """Links asked against measured, a row per direction, and below why one is not as asked.

    `checks` as links.json has them.
    """
    asked = [check["asked"] for check in checks]
    measured = [check["measured"] for check in checks]
    rtt = [direction["rtt_s"] for direction in measured]
    one_way = [direction["one_way_s"] for direction in measured]
    columns = [
        [direction["rtt_s"] for direction in asked],
        [spread and spread["median"] for spread in rtt],
        [spread and spread["p99"] for spread in rtt],
        [direction["delay_s"] for direction in asked],
        [spread and spread["median"] for spread in one_way],
    ]
    shown = iter(show_times([time for column in columns for time in column]))
    rtt_asked, rtt_median, rtt_p99, way_asked, way_median = ([next(shown) for _ in column] for column in columns)
    rates = show_rates([direction["rate_bps"] for direction in (*asked, *measured)])
    delays = [
        Column("RTT\nasked", rtt_asked),
        Column("\nmedian", rtt_median),
        Column("\np99", rtt_p99),
        Column("one-way\nasked", way_asked),
        Column("\nmedian", way_median),
    ]
    rest = [
        Column("rate\nasked", rates[: len(checks)]),
        Column("\nmeasured", rates[len(checks) :]),
        *_losses(asked, measured),
        Column("\ndropped", [str(direction["dropped"]) for direction in measured]),
        Column("\nattempts", [str(check["attempts"]) for check in checks]),
        Column("\nas asked", [_YES if check["ok"] else _NO for check in checks], left=True),
    ]
    key = Column(
        "\ndirection", [Text(check["label"], style="" if check["ok"] else "red") for check in checks], left=True
    )
    tables = fitted(key, [Section(f"{title}: delays", delays), Section(f"{title}: rates", rest)], width)
    if len(tables) == 1:
        tables[0].title = title
    why = [
        Text(f"{check['label']}: {reason}", style="red")
        for check in checks
        if not check["ok"]
        for reason in check["reasons"]
    ]
    return [*tables, *why]


def _losses(asked: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Asked for and counted among the probe's packets; nothing where no direction is to lose any."""
    if not any(direction["loss"] for direction in asked):
        return []
    counts = [direction["losses"] for direction in measured]
    found = ["-" if count is None else f"{100 * count['lost'] / count['sent']:.3g}%" for count in counts]
    wanted = [f"{100 * direction['loss']:.3g}%" if direction["loss"] else "-" for direction in asked]
    return [Column("loss\nasked", wanted), Column("\nfound", found)]


def engine_tables(document: Mapping[str, Any], width: int) -> list[RenderableType]:
    """What messages take beyond the model, by size and by whether they cross links; then the engine's constants."""
    clock, kernel = document["clock"], document["kernel"]
    rows = [
        (show_size(row["message_bytes"]), kind, times)
        for row in document["sizes"]
        for kind, times in (("inside", row["inside_s"]), ("across", row["across_s"]))
        if times is not None
    ]
    extra = [Column("kind", [kind for _, kind, _ in rows], left=True)]
    extra.append(Column("messages", [str(times["count"]) for *_, times in rows]))
    for name in ("median", "p90", "p99", "worst"):
        extra.append(Column(name, [show_milliseconds(times[name]) for *_, times in rows], unit="ms"))
    beyond = fitted(
        Column("message", [size for size, *_ in rows], left=True),
        [Section(f"beyond the model, in ms ({clock} clock, Linux {kernel})", extra)],
        width,
    )
    return [*beyond, *_constants(document, width)]


def _constants(document: Mapping[str, Any], width: int) -> list[RenderableType]:
    model, sizes = document["model"], document["sizes"]
    added = [row["gloo_bytes"] for row in sizes]
    ready = [row["ready_wait_s"] for row in sizes]
    waits = show_times([wait and wait[name] for name in ("median", "p99") for wait in ready])
    limit = show_times([model["unnoticed_wait_s"]] * len(sizes))
    columns = [
        Column("gloo\nadds", ["-" if extra is None else f"{extra:.0f} B" for extra in added]),
        Column("\nthe model", [f"{model['gloo_bytes']} B"] * len(sizes)),
        Column("to take one that\nlies ready: median", waits[: len(sizes)]),
        Column("\np99", waits[len(sizes) :]),
        Column("\nlimit", limit),
    ]
    key = Column("\nmessage", [show_size(row["message_bytes"]) for row in sizes], left=True)
    return [*fitted(key, [Section("constants of the engine", columns)], width)]


def mininet_tables(links: Sequence[Mapping[str, Any]], width: int) -> list[RenderableType]:
    """Plain Mininet links asked against measured, for comparison; `links` as `calibrate --json` has them."""
    if not links:
        return []
    times = show_times([*(2 * link["delay_s"] for link in links), *(link["rtt"]["median"] for link in links)])
    rates = show_rates([*(link["rate_bps"] for link in links), *(link["measured_bps"] for link in links)])
    count = len(links)
    errors = [show_change(link["measured_bps"] / link["rate_bps"] - 1) for link in links]
    columns = [
        Column("RTT\nasked", times[:count]),
        Column("\nmedian", times[count:]),
        Column("rate\nasked", rates[:count]),
        Column("\nmeasured", rates[count:]),
        Column("\nerror", errors),
        Column("resent /\ndropped", [f"{link['retransmits']} / {link['dropped']}" for link in links]),
    ]
    key = Column("\nlink", [str(number + 1) for number in range(count)], left=True)
    said = [
        Text(f"Mininet said of link {number + 1}: {'; '.join(dict.fromkeys(link['said']))}")
        for number, link in enumerate(links)
        if link["said"]
    ]
    return [*fitted(key, [Section("plain Mininet TCLink, same delay and rate", columns)], width), *said]


_WIDEST = 68
"""Columns of a line of a command: on a screen of 80 none is broken."""


def doctor_lines(findings: Sequence[FeatureCheck]) -> list[RenderableType]:
    """What works on this machine, and what adds the rest. Commands have lines of their own: they can be copied."""
    lines: list[RenderableType] = [Text("what this machine can do", style="italic")]
    name_width = max(len(finding.name) for finding in findings)
    for finding in findings:
        lines.append(_finding(_feature_mark(finding), finding.name, finding.detail, name_width))
        if finding.otherwise and not finding.ok:
            lines.append(_finding("", "", f"without it: {finding.otherwise}", name_width))
        if finding.remedy and not finding.ok:
            lines.append(indented(Text(_to_be_copied(finding.remedy), style="bold", overflow="fold")))
    return lines


def _to_be_copied(command: str) -> str:
    """A command in lines as a shell takes them."""
    return " \\\n    ".join(textwrap.wrap(command, _WIDEST, break_long_words=False, break_on_hyphens=False))


def _feature_mark(finding: FeatureCheck) -> Text:
    if finding.ok:
        return Text("ok", style="green")
    if not finding.tried:
        return Text("not tried", style="yellow")
    return Text("NO", style="bold red") if finding.needed else Text("no, optional", style="yellow")


def _finding(mark: Cell, name: str, detail: str, name_width: int) -> Table:
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=_MARK_WIDTH)
    row.add_column(width=name_width)
    row.add_column(overflow="fold")
    row.add_row(mark, name, detail)
    return row
