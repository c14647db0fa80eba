"""`testbed baseline`: keep what plans take today, and say later what has become slower, faster or less true."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed import extras
from testbed.cli import options
from testbed.cli.plan import PlanOptions, complete, require_trust, unfinished_plan
from testbed.errors import BadInput, ExitCode
from testbed.files import output, output_directory, require_writable, write_output
from testbed.plugins import in_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from testbed.baseline.check import Extent
    from testbed.baseline.check_report import CheckReport
    from testbed.baseline.ci_formats import Target
    from testbed.baseline.history import CheckRecord
    from testbed.baseline.keep import Terms
    from testbed.baseline.store import Baseline, SavedFrom
    from testbed.plan.plan import Plan

baseline_app = typer.Typer(help="Keep what plans take today, and hold later versions against it.", no_args_is_help=True)

Root = Annotated[Path, typer.Option("--baselines", metavar="DIR", help="Where baselines lie.")]
NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME|DIR]...", help="Only these; default: all in results/baselines/.")
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why it is saved, or saved anew.")]
QuickMark = Annotated[bool, typer.Option("--quick", help="`check --quick` shall repeat its run, too.")]

FilesMark = Annotated[
    bool,
    typer.Option("--files", help="Make plans anew from the files that they were saved from, as these are today."),
]

WriteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--write",
        metavar="FORMAT=FILE",
        help="Also write the times as bencher (Bencher Metric Format) or github-benchmark (customSmallerIsBetter), "
        "or how many baselines hold as a badge in SVG (repeatable).",
    ),
]

ROOT = Path("results/baselines")


_What = Annotated[
    Path | None,
    typer.Argument(metavar="[TOPOLOGY|PLAN]", help="As for `testbed run`.", autocompletion=options.topology_names),
]
_Workloads = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[WORKLOAD]...", help="As for `testbed run`.", autocompletion=options.workload_names),
]


@baseline_app.command("save")
def save(
    name: Annotated[str, typer.Argument(help="Name of the baseline: a directory in results/baselines/.")],
    what: _What = None,
    workloads: _Workloads = None,
    from_run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Take plan and figures of a finished run instead.")
    ] = None,
    schedule: options.Schedules = None,
    settings: options.Settings = None,
    iterations: options.Iterations = None,
    clock: Annotated[
        options.ClockName | None,
        typer.Option(help="virtual: in a guest, in its time; default: virtual, or the plan's."),
    ] = None,
    predict_only: Annotated[bool, typer.Option("--predict-only", help="The model alone: no run.")] = False,
    shaper: options.ShaperOption = options.AUTO_SHAPER,
    seed: options.SeedOption = None,
    reason: Reason = "",
    quick: QuickMark = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the baseline of that name.")] = False,
    root: Root = ROOT,
    wall_limit: options.WallLimit = None,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a plan (or take a finished run) and keep plan and figures. A run that cannot be trusted is not kept.

    With one argument behind the name, the plan is plan.json, or a directory with one in it. Several workloads are jobs
    at the same time, as of `testbed plan`; each has figures of its own.
    """
    from testbed.baseline import keep, store
    from testbed.baseline.tolerance import Mode
    from testbed.cli.progress import Terminal
    from testbed.planning import resolve

    directory = root / store.checked_name(name)
    store.require_free(directory, overwrite=overwrite)
    if from_run is not None:
        of_plan = (what, workloads, schedule, settings, iterations, clock, seed, wall_limit)
        if predict_only or any(option is not None for option in of_plan):
            raise BadInput.of("baseline save", "--run", str(from_run), "no plan beside it: the run has one")
        _save_run(directory, from_run, keep.Terms(reason, quick), trust=trust)
    elif what is None:
        raise BadInput.of("baseline save", "plan", name, "TOPOLOGY and WORKLOAD, a plan, or --run DIR")
    else:
        plan = unfinished_plan(what, workloads, PlanOptions(schedule), settings, iterations, trust=trust)
        name_of_clock = clock or (options.ClockName.virtual if workloads else plan.clock.name)
        mode = Mode.predict if predict_only else Mode(name_of_clock)
        if mode is not Mode.predict:
            extras.require("train")
        number = options.seed_of(seed, virtual=mode is Mode.virtual, otherwise=plan.clock.seed)
        limit_s = options.wall_limit_of(wall_limit, guest=mode is Mode.virtual)
        plan = resolve.with_clock(plan, mode.clock(number))
        if workloads:
            plan = complete(plan, schedule, None, quiet=quiet, strict=True, sources=workloads)
        files = _saved_from(directory, what, workloads, schedule, settings, iterations) if workloads else None
        terms = keep.Terms(reason, quick, mode, shaper, files)
        keep.save(directory, plan, terms, limit_s=limit_s, reporter=Terminal(quiet=quiet))
    print(f"saved {directory}/")


def _saved_from(
    directory: Path,
    topology: Path,
    workloads: Sequence[Path],
    schedules: Sequence[str] | None,
    settings: Sequence[str] | None,
    iterations: int | None,
) -> SavedFrom:
    """What a baseline in this directory is made of, as seen from there."""
    from testbed.baseline.store import SavedFrom
    from testbed.spec.presets import is_preset

    def seen(file: Path) -> str:
        return str(file) if is_preset(file) else os.path.relpath(file.resolve(), directory.resolve())

    def named(schedule: str) -> str:
        code = in_file(schedule)
        if code is not None:
            return f"{seen(Path(code.file))}:{code.name}"
        return seen(Path(schedule)) if schedule.endswith(".csv") else schedule

    chosen = None if schedules is None else list(map(named, schedules))
    return SavedFrom(seen(topology), list(map(seen, workloads)), chosen, list(settings or ()), iterations)


def _from_files(directory: Path, *, quiet: bool) -> Plan:
    """The plan that a baseline's files make today; the one that is kept where it was saved from a plan or a run. Raises
    BadInput."""
    from testbed.baseline import store
    from testbed.planning import resolve
    from testbed.spec.presets import is_preset

    kept, saved = store.plan_of(directory), store.read(directory).files
    if saved is None:
        return kept

    def found(name: str) -> Path:
        return Path(name) if is_preset(Path(name)) else directory / name

    def named(schedule: str) -> str:
        code = in_file(schedule)
        if code is not None:
            return f"{directory / code.file}:{code.name}"
        return str(directory / schedule) if schedule.endswith(".csv") else schedule

    workloads, schedules = list(map(found, saved.workloads)), saved.schedules and list(map(named, saved.schedules))
    asked = PlanOptions(schedules)
    plan = unfinished_plan(found(saved.topology), workloads, asked, saved.settings, saved.iterations)
    plan = resolve.with_clock(plan, kept.clock)
    return complete(plan, schedules, None, quiet=quiet, strict=True, sources=workloads)


def _plans(*, files: bool, quiet: bool) -> Callable[[Path], Plan]:
    """What gives the plan of a baseline in a directory: that which is kept there, or that of its files."""
    from testbed.baseline import store

    return partial(_from_files, quiet=quiet) if files else store.plan_of


def _save_run(directory: Path, run: Path, terms: Terms, *, trust: bool) -> None:
    """Keep a finished run, once its code is trusted. Raises BadInput or UntrustedRun."""
    from testbed.baseline import keep
    from testbed.planning import file

    extras.require("report")
    if not trust and (run / file.NAME).exists():  # or it is no results directory, which is said next
        require_trust(run)
    keep.save_run(directory, run, terms)


@baseline_app.command("renew")
def renew(
    names: Annotated[list[str], typer.Argument(metavar="NAME|DIR...", help="Baselines to save anew.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why the old figures no longer hold.")],
    schedules_anew: Annotated[
        bool, typer.Option("--schedules-anew", help="Make schedules anew as well; default: those of the baseline.")
    ] = False,
    files: FilesMark = False,
    root: Root = ROOT,
    wall_limit: options.WallLimitOfBaselines = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure baselines again and keep the new figures in place of the old ones, with the reason."""
    from testbed.baseline import keep, store
    from testbed.cli.progress import Terminal

    directories = store.find(root, names)
    limit_s = options.wall_limit_of(wall_limit, guest=True, otherwise=options.BASELINES_LIMIT_S)
    if not reason.strip():
        raise BadInput.of("--reason", "text", reason, "why the old figures no longer hold, in words")
    plan_of, reporter = _plans(files=files, quiet=quiet), Terminal(quiet=quiet)
    keep.renew(directories, reason, schedules_anew=schedules_anew, limit_s=limit_s, reporter=reporter, plan_of=plan_of)
    print(f"saved anew: {', '.join(directory.name for directory in directories)}")


@baseline_app.command("check")
def check(
    names: NamesArgument = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Repeat the runs of those saved with --quick; predict the others.")
    ] = False,
    predict_only: Annotated[
        bool, typer.Option("--predict-only", help="Predict all: no run, no root, seconds.")
    ] = False,
    files: FilesMark = False,
    allow_faster: Annotated[bool, typer.Option("--allow-faster", help="What became faster is no fault.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Lay this over every plan: to see what would be caught."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the result as JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a summary in Markdown.")] = None,
    write: WriteOption = None,
    history: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Append the times to those of earlier checks, kept there.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the runs here; default: not kept.")] = None,
    root: Root = ROOT,
    wall_limit: options.WallLimitOfBaselines = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat baselines and say what is slower, faster or less true, by how much. Exit code 1: outside tolerance."""
    from testbed.baseline import check_report as reports
    from testbed.baseline import history as histories
    from testbed.baseline.check import load, repeat
    from testbed.baseline.ci_formats import targets_of
    from testbed.cli.progress import Terminal

    targets = targets_of(write or [])
    for option, file in (("--junit", junit), ("--markdown", markdown), *(("--write", one.file) for one in targets)):
        if file is not None:
            require_writable(file, option)
    if history is not None:
        if settings:
            raise BadInput.of("--history", "option", str(history), "no --set beside it: those are not the baselines")
        histories.require_writable(history)
    limit_s = options.wall_limit_of(wall_limit, guest=not predict_only, otherwise=options.BASELINES_LIMIT_S)
    extent, plan_of = _extent(quick, out, predict_only=predict_only), _plans(files=files, quiet=quiet)
    subjects = load(root, names or [], settings or [], extent, plan_of)
    with _place(out) as scratch:
        checked = repeat(subjects, scratch, limit_s=limit_s, reporter=Terminal(quiet=quiet))
    report = reports.CheckReport(checked, allow_faster, tuple(settings or ()))
    _write_reports(report, junit, markdown)
    record = histories.record_of(report)
    _write(targets, record)
    if history is not None:
        histories.append(history, record)
    if as_json:
        options.emit(reports.as_document(report))
    else:
        _print(report)
    if report.outside or report.of_machine:
        raise typer.Exit(ExitCode.REGRESSION if report.outside else ExitCode.UNTRUSTED)


@baseline_app.command("history")
def history(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `check --history` was given.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these baselines.")] = None,
    last: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Of the last N checks only; default: 1000.")
    ] = 1000,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=options.drawable, help="Draw the times into this file (SVG or PNG)."),
    ] = None,
    write: WriteOption = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how the times of every baseline went from check to check. What --write writes is the last check."""
    from testbed.baseline import history as histories
    from testbed.baseline.ci_formats import targets_of
    from testbed.cli.history_tables import history_document, history_tables

    targets = targets_of(write or [])
    records = histories.read(directory)[-last:]
    if not records:
        raise BadInput.of(str(directory / histories.FILE), "checks", 0, "one or more")
    series = histories.series_of(records, names or [])
    _write(targets, records[-1])
    if picture is not None:
        from testbed.baseline.history_picture import draw

        with output(picture, "--picture") as partial:
            draw(records, series, partial)
    if as_json:
        options.emit(history_document(records, series))
        return
    console = options.stdout_console(80)
    options.show(console, *history_tables(records, series, console.width))


def _write_reports(report: CheckReport, junit: Path | None, markdown: Path | None) -> None:
    from testbed.baseline import check_report as reports
    from testbed.baseline.junit import junit as as_junit

    if junit is not None:
        write_output(junit, as_junit(report), "--junit")
    if markdown is not None:
        write_output(markdown, reports.markdown(report), "--markdown")


def _write(targets: Sequence[Target], record: CheckRecord) -> None:
    from testbed.baseline.ci_formats import FORMATS

    for target in targets:
        write_output(target.file, FORMATS[target.format](record), "--write")


@baseline_app.command("list")
def list_baselines(root: Root = ROOT, as_json: options.AsJson = False) -> None:
    """The baselines that there are."""
    from testbed.baseline import store

    directories = store.find(root, [])
    found = [store.read(directory) for directory in directories]
    if as_json:
        keys = ("name", "mode", "saved", "reason", "quick", "shaper", "environment")
        documents = [
            {key: getattr(baseline, key) for key in keys}
            | {"seed": store.plan_of(directory).clock.seed, "schedules": [figures.name for figures in baseline.figures]}
            for directory, baseline in zip(directories, found, strict=True)
        ]
        options.emit({"baselines": documents})
        return
    console = options.stdout_console(120)
    options.show(console, *_listed(found, console.width))


def _listed(found: Sequence[Baseline], width: int) -> list[RenderableType]:
    """The baselines, and below with which kernels and why they were saved."""
    from rich.text import Text

    from testbed.baseline import environment
    from testbed.cli.table_layout import Column, Section, fitted

    columns = [
        Column("by", [f"{baseline.mode}{', quick' if baseline.quick else ''}" for baseline in found], left=True),
        Column("schedules", [str(len(baseline.figures)) for baseline in found]),
        Column("saved", [baseline.saved[:10] for baseline in found], left=True),
    ]
    key = Column("name", [baseline.name for baseline in found], left=True)
    groups: dict[str, list[str]] = {}
    for baseline in found:
        kernel = baseline.environment.get("kernel")
        facts = [f"kernel {environment.kernel_name(kernel)}" if kernel else "", baseline.reason]
        for fact in filter(None, facts):
            groups.setdefault(fact, []).append(baseline.name)
    below = [Text(f"{'all' if len(names) == len(found) else ', '.join(names)}: {why}") for why, names in groups.items()]
    return [*fitted(key, [Section("baselines", columns)], width), *below]


def _extent(quick: bool, out: Path | None, *, predict_only: bool) -> Extent:
    """How much is repeated. Raises BadInput for what is said of runs where all is predicted."""
    from testbed.baseline.check import Extent

    for option, value in {"--quick": quick or None, "--out": out and str(out)}.items():
        if predict_only and value is not None:
            raise BadInput.of(option, "option", value, "no --predict-only beside it: nothing is run then")
    return Extent.predictions if predict_only else Extent.quick if quick else Extent.all


@contextmanager
def _place(out: Path | None) -> Iterator[Path]:
    """Where runs write: a directory to keep, or one that goes."""
    if out is not None:
        yield output_directory(out, "--out")
        return
    from testbed.scratch import scratch_directory

    with scratch_directory("testbed-baseline-") as scratch:
        yield scratch


def _print(report: CheckReport) -> None:
    from rich.text import Text

    from testbed.baseline.check_report import table

    console = options.stdout_console(80)
    for line, style in table(report):
        console.print(Text(line, style=style), soft_wrap=True)
