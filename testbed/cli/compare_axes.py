"""`testbed compare-axes`: should the pipeline cross datacenters, or data parallelism?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from testbed import extras
from testbed.cli import options
from testbed.cli.table_layout import Column, Section, fitted
from testbed.cli.untrusted import why_untrusted
from testbed.errors import BadInput, ExitCode
from testbed.files import output, require_writable, write_output

if TYPE_CHECKING:
    from testbed.spec.workload import Workload
    from testbed.sweep.axes import Compared, LinkPoint
    from testbed.sweep.measured_axes import MeasuredPoint

DELAYS = ("4 ms", "8 ms", "16 ms", "32 ms", "64 ms", "128 ms")
RATES = ("32 Gbit/s", "128 Gbit/s", "512 Gbit/s", "2.048 Tbit/s", "8.192 Tbit/s")
"""The range of CrossPipe's Figure 9: 4 to 128 ms, 4 to 1024 GB/s."""

_WORTH_A_WORD = 0.01
"""Of what is exchanged."""


_Delays = Annotated[
    list[str] | None, typer.Option(metavar="TIME", help="One way, repeatable; default: 4 ms to 128 ms.")
]
_Rates = Annotated[
    list[str] | None, typer.Option(metavar="RATE", help="Of each direction; default: 32 Gbit/s to 8.192 Tbit/s.")
]
_Measure = Annotated[
    int, typer.Option(min=0, max=1000, metavar="N", help="Measure N of the points on the virtual clock.")
]
_Picture = Annotated[
    Path | None, typer.Option(metavar="FILE", callback=options.drawable, help="Draw a map (.svg or .png).")
]
_Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep axes.json here; what is measured in a new directory.")
]


def compare_axes(
    workload: options.WorkloadFile,
    delay: _Delays = None,
    rate: _Rates = None,
    schedule: options.Schedules = None,
    measure: _Measure = 0,
    picture: _Picture = None,
    out: _Out = None,
    settings: options.WorkloadSettings = None,
    wall_limit: options.WallLimitOfPoints = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Which axis should cross two datacenters, pipeline or data parallelism, at which delay and rate of the link.

    Both are predicted for a workload at full scale: one pipeline over both datacenters, and a pipeline in each of them
    with parameters and gradients exchanged (ZeRO-1), with every schedule of the workload (CrossPipe, Appendix E).
    """
    from testbed.cli.progress import Terminal
    from testbed.planning.resolve import overrides_of_one
    from testbed.results.destination import require_place
    from testbed.spec import load_workload
    from testbed.sweep.axes import compare, require_axes

    points = _points(delay or DELAYS, rate or RATES)
    options.only_beside_measure(measure, {"--wall-limit": wall_limit})
    if measure and out is None:
        raise BadInput.of("--measure", "option", measure, "--out beside it, where the results go")
    if measure:
        extras.require("train")
    asked = load_workload(
        workload, overrides_of_one(settings or [], "a field of the workload: --delay and --rate say what the link is")
    )
    require_axes(asked)
    if measure and out is not None:
        require_place(out, overwrite=None)
    if out is not None:
        require_writable(out / "axes.json", "--out", make=True)
    reporter = Terminal(quiet=quiet)
    found = []
    with reporter.step("comparing axes", total=len(points)) as step:
        for point in points:
            found.append(compare(asked, point, schedule or []))
            step.advance()
    measured: list[MeasuredPoint] = []
    if measure and out is not None:
        from testbed.sweep import measured_axes

        some, limit_s = measured_axes.spread(found, measure), wall_limit or options.POINTS_LIMIT_S
        measured = measured_axes.measure(asked, some, out, limit_s=limit_s, reporter=reporter)
    if picture is not None:
        _draw(asked.name, found, measured, picture)
    _show(asked, found, measured, out, picture, as_json=as_json)
    if not all(point.trusted and point.as_predicted for point in measured):
        raise typer.Exit(ExitCode.UNTRUSTED)


def _points(delays: Sequence[str], rates: Sequence[str]) -> list[LinkPoint]:
    """Every delay with every rate, as options say them, each once in whatever unit. Raises BadInput."""
    from testbed.sweep.axes import LinkPoint
    from testbed.units import RATE, TIME

    delays_s = sorted({float(f"{options.quantity('--delay', text, TIME, 'a time'):.12g}") for text in delays})
    rates_bps = sorted({float(f"{options.quantity('--rate', text, RATE, 'a rate'):.12g}") for text in rates})
    return [LinkPoint(delay_s, rate_bps) for delay_s in delays_s for rate_bps in rates_bps]


def _show(
    asked: Workload,
    found: Sequence[Compared],
    measured: Sequence[MeasuredPoint],
    out: Path | None,
    picture: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write axes.json where results are kept; print the same, and where the picture is."""
    from testbed.sweep.axes import exchanged_beyond

    beyond = exchanged_beyond(asked)
    shown = {"points": [one.as_json() for one in found], "measured": [one.as_json() for one in measured]}
    document = {"workload": asked.name, "exchanged_beyond": beyond, **shown}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_output(out / "axes.json", json.dumps(document, indent=2) + "\n", "--out")
    if as_json:
        options.emit(document)
        return
    console = options.stdout_console(100)
    _print(console, asked.name, found, measured)
    if beyond > _WORTH_A_WORD:
        console.print(
            f"stages are uneven: every rank exchanges as much as the largest, {beyond:.1%} more in all than the model "
            "has, so that data over a link whose rate decides takes up to so much longer here",
            highlight=False,
        )
    if picture is not None:
        console.print(f"drawn in {picture}", highlight=False, soft_wrap=True)


def _draw(name: str, found: Sequence[Compared], measured: Sequence[MeasuredPoint], picture: Path) -> None:
    from testbed.sweep.axes_picture import draw

    heading = f"{name}: which axis should cross the link, and how many times longer the other one takes"
    with output(picture, "--picture") as partial:
        draw(found, partial, heading=heading, measured=[point.predicted for point in measured])


def _print(console: Console, name: str, found: Sequence[Compared], measured: Sequence[MeasuredPoint]) -> None:
    from testbed.units import show_rate, show_time

    def keys(points: Sequence[Compared]) -> Column:
        delays = [show_time(point.point.delay_s) for point in points]
        said = ["" if number and delays[number - 1] == delay else delay for number, delay in enumerate(delays)]
        widest = max(map(len, delays))
        words = [
            f"{delay:>{widest}}  {show_rate(point.point.rate_bps)}" for delay, point in zip(said, points, strict=True)
        ]
        return Column("link:\ndelay, rate", words, left=True)

    times = [
        Column("pipeline\nover it", [_seconds(point.pipeline.best_s) for point in found]),
        Column("data\nover it", [_seconds(point.data.best_s) for point in found]),
        Column("data /\npipeline", [f"{point.gain:.2f}" for point in found]),
        Column("should\ncross", [point.winner for point in found], left=True),
    ]
    further = [
        Column("pipeline\nwith", [point.pipeline.best for point in found], left=True),
        Column("data\nwith", [point.data.best for point in found], left=True),
        Column("data, not\noverlapped", [_seconds(point.data_not_overlapped_s) for point in found]),
    ]
    sections = [Section(f"{name}: predicted at full scale", times), Section("the fastest schedule of each", further)]
    options.show(console, *fitted(keys(found), sections, console.width))
    if measured:
        key = keys([point.predicted for point in measured])
        options.show(console, *fitted(key, [_measured(measured)], console.width), *_untrusted(measured))


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _untrusted(measured: Sequence[MeasuredPoint]) -> Iterator[Text]:
    """Of every run that there is and that is not trusted why, and of others that they are not there."""
    from testbed.units import show_rate, show_time

    for point in measured:
        link = f"over {show_time(point.predicted.point.delay_s)}, {show_rate(point.predicted.point.rate_bps)}"
        for axis, row in (("pipeline", point.pipeline), ("data", point.data)):
            name = f"{axis} {link}"
            yield from why_untrusted([(name, row)]) if row else [Text(f"{name} not measured: its logs say why")]


def _measured(measured: Sequence[MeasuredPoint]) -> Section:
    from testbed.units import show_change

    columns = []
    for axis in ("pipeline", "data"):
        rows = [getattr(point, axis) for point in measured]
        shown = ["-" if row is None else _seconds(row["full_scale"]["measured_s"]) for row in rows]
        errors = ["-" if row is None else show_change(row["error"], 3) for row in rows]
        columns += [Column(f"{axis}\nover it", shown), Column("off by", errors)]
    agreed = [("yes" if point.as_predicted else "NO") if point.trusted else "untrusted" for point in measured]
    return Section("measured in virtual time, at full scale", [*columns, Column("as\npredicted", agreed)])
