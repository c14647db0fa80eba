"""Every command at 80 columns: no line is wider, nothing is cut, and what is to be copied is in one piece."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.answer import print_answer
from testbed.cli.determinism import spread_tables
from testbed.cli.event_tables import event_tables, link_event_tables
from testbed.cli.help import EXAMPLES, GROUPS
from testbed.cli.lab_tables import doctor_lines, engine_tables, link_tables, mininet_tables
from testbed.cli.run_tables import ReportPart, details
from testbed.cli.table_layout import Column, Section, fitted
from testbed.lab.doctor import _PROBES, FeatureCheck
from testbed.results.load import Run
from testbed.vm.determinism import SeedSpread
from testbed.vm.guest_machine import PACKAGE_COMMAND
from testbed.vm.kernel import BUILD_COMMAND

WIDTHS = (80, 120)
LONGHAUL, PP4 = "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml"
CUT = "…"
LONG_LABEL = "crosspipe-greedy(memory=8,n_sub=4,receives=when-reached)"

CHAIN = [f"abcdefghijklmnopqrstuvwxy-{n:02}" for n in range(12)]


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def screen(width: int, *words: str) -> str:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": str(width)})
    assert done.exit_code == 0, done.output
    return done.output


def require_legible(text: str, width: int, copied: Sequence[str] = ()) -> None:
    """Lines that hold what is to be copied may be longer: the terminal wraps them, and copies them whole."""
    assert CUT not in text, text
    for line in text.splitlines():
        if not any(whole in line for whole in copied):
            assert cell_len(line.rstrip()) <= width, line
    for whole in copied:
        assert whole in text


def printed(width: int, *renderables: Any) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for one in renderables:
        console.print(one)
    return stream.getvalue()


# --- commands, as they are called ----------------------------------------------------------------


def chain_of_datacenters(directory: Path) -> str:
    """Twelve datacenters with names as long as they may be."""
    lines = ["name: chain", "datacenters:", *(f"  {name}: {{nodes: 1}}" for name in CHAIN), "links:"]
    lines += [
        f"  - {{between: [{a}, {b}], delay: {n}.25 ms, rate: 1 Gbit/s}}" for n, (a, b) in enumerate(pairwise(CHAIN))
    ]
    path = directory / "chain.yaml"
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "words",
    [
        ("predict", LONGHAUL, PP4),
        ("predict", LONGHAUL, PP4, "--set", "parallelism.pipeline=1", "--set", "memory=16"),
        ("predict", LONGHAUL, PP4, PP4, "--set", "schedules=[1f1b]"),
        ("schedule", "show", LONGHAUL, PP4),
        ("schedule", "show", LONGHAUL, PP4, "--order", "--set", "microbatches=40"),
        ("schedule", "show", LONGHAUL, PP4, "--set", "parallelism.pipeline=1", "--set", "memory=16"),
        ("schedule", "compare", LONGHAUL, PP4, "--schedule", "zb-h1", "--schedule", "gpipe"),
        ("schedule", "validate", LONGHAUL, PP4, "examples/my_schedule.csv", "--set", "memory=8"),
        ("baseline", "list"),
        ("presets",),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands(words: tuple[str, ...], width: int) -> None:
    require_legible(screen(width, *words), width)


def test_iterations_with_several_events_stand_beside_what_happens_in_them() -> None:
    happens = [f"link paris--warsaw {what} at iteration 2 + 30 ms" for what in ("down for 20 ms", "rate 50 %")]
    events = [word for event in happens for word in ("--event", event)]
    shown = screen(80, "predict", LONGHAUL, PP4, "--schedule", "1f1b", *events)
    require_legible(shown, 80)
    said, table = shown.partition("iterations as links and ranks change")[2], []
    for line in said.splitlines():
        if line.startswith("│"):
            schedule, iterations, _, words = (cell.strip() for cell in line.strip("│").split("│"))
            if schedule:
                table.append((schedule, iterations, ""))
            table[-1] = (*table[-1][:2], f"{table[-1][2]} {words}".strip())
    assert ("1f1b", "2", "; ".join(happens)) in table, shown


@pytest.mark.parametrize("width", [40, 80])
def test_a_cell_that_no_table_has_room_for_goes_on_in_the_next_line(width: int) -> None:
    key, wide = Column("schedule", ["gpipe", "crosspipe-greedy"]), "a cell of many words " * 12
    tables = fitted(key, [Section("title", [Column("n", ["1", "2"]), Column("said", ["-", wide])])], width)
    shown = printed(width, *tables)
    require_legible(shown, width)
    assert shown.count("cell") == wide.count("cell"), shown
    assert shown.count("gpipe") == len(tables), "every table names its rows"


@pytest.mark.parametrize("words", [("predict",), ("schedule", "show"), ("schedule", "compare")], ids=" ".join)
def test_twelve_datacenters_with_long_names(words: tuple[str, ...], tmp_path: Path) -> None:
    topology = chain_of_datacenters(tmp_path)
    settings = ("--set", "parallelism.pipeline=12", "--set", "model.layers=12", "--set", "microbatches=12")
    shown = screen(80, *words, topology, PP4, "--schedule", "1f1b", *settings, "--set", "memory=24")
    require_legible(shown, 80)
    if words == ("predict",):
        assert all(name[:20] in shown for name in CHAIN)


def test_what_is_written_is_named_in_one_piece(tmp_path: Path) -> None:
    out = tmp_path / ("a-directory-with-a-long-name-" * 3) / "plan.json"
    out.parent.mkdir()
    require_legible(screen(80, "plan", LONGHAUL, PP4, "-o", str(out)), 80, [str(out)])


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, (*path, name))


@pytest.mark.parametrize("path", list(every_command(typer.main.get_command(app))), ids=" ".join)
def test_help(path: tuple[str, ...]) -> None:
    require_legible(screen(80, *path, "--help"), 80)


# --- runs ----------------------------------------------------------------------------------------


def row(label: str, seconds: float, *, trusted: bool, iqr_s: float = 2.132e-14, **fields: Any) -> dict[str, Any]:
    """A schedule in comparison.json, as a session on a real clock writes it."""
    reasons = [] if trusted else ["the machine was busy otherwise: stolen time could explain 2.7% of it (limit 1%)"]
    flow = {"source_rank": 0, "target_rank": 1, "kind": "activation", "messages": 80, "awaited": 12}
    flow |= dict.fromkeys(("arrival_median_s", "arrival_worst_s", "extra_median_s", "extra_p90_s"), -1e-9)
    check = {"question": "what disturbances explain", "found": "2.70%", "limit": "1%", "reasons": reasons}
    return {
        "schedule": "crosspipe-greedy",
        "label": label,
        "measured_s": seconds,
        "measured_iqr_s": iqr_s,
        "predicted_s": seconds * (1 + 1e-9),
        "error": -1e-9,
        "bubble_measured": 0.4,
        "bubble_predicted": -1e-18,
        "peak_in_flight_measured": 4.0,
        "peak_in_flight_predicted": 4.0,
        "speedup_measured": 1.0,
        "speedup_predicted": None,
        "trusted": trusted,
        "reasons": reasons,
        "solver": None,
        "predicted_on_this_host_s": seconds,
        "on_this_host_low_s": seconds * (1 - 1e-9),
        "on_this_host_high_s": seconds * 1.001,
        "disturbed_iterations": 1,
        "measured_undisturbed_s": seconds,
        "checks": [check | {"why": "beyond it medians move more than close schedules differ", "ok": trusted}],
        "messages": [flow | {"extra_worst_s": 11.25e-3}],
        **fields,
    }


def run_screen(width: int, rows: Sequence[dict[str, Any]], directory: Path = Path("results/demo")) -> str:
    """All that a report says of a run."""
    stream = io.StringIO()
    document: dict[str, Any] = {
        "name": "tiny-gpt-pp4 on two-dc-longhaul",
        "shaper": "relay",
        "transport": "otn-lossless",
    }
    document |= {"transport": "otn-lossless", "clock": "real", "ranking_as_predicted": True, "schedules": rows}
    console = Console(file=stream, width=width)
    for one in details(document, set(ReportPart), width):
        console.print(one)
    print_answer(console, Run({}, document, complete=True, has_traces=False), directory, pages=1)
    return stream.getvalue()


RUNS = {
    "one schedule": [row("1f1b", 0.8, trusted=True)],
    "sixteen with long labels": [row(f"{LONG_LABEL}-{n}", 0.6 + n / 7, trusted=n % 2 == 0) for n in range(16)],
    "all untrusted": [row(name, 0.7, trusted=False) for name in ("gpipe", "1f1b", "zb-h1")],
    "nothing known of the host": [row("1f1b", 0.8, trusted=True, predicted_on_this_host_s=None, messages=[])],
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", RUNS.values(), ids=RUNS)
def test_runs(rows: list[dict[str, Any]], width: int) -> None:
    directory = Path("results") / ("with-a-long-name-" * 8)
    shown = run_screen(width, rows, directory)
    require_legible(shown, width, [f"results in {directory}/", f"testbed report {directory} --details"])
    for one in rows:
        assert one["label"][:20] in shown


def test_numbers_have_no_negative_zero_and_no_exponent() -> None:
    shown = run_screen(80, RUNS["one schedule"])
    for wrong in ("-0.0", "e-", "1000 ms"):
        assert wrong not in shown, shown


def test_a_column_has_one_unit() -> None:
    rows = [row("1f1b", 1.2, trusted=True, iqr_s=974.7e-6), row("zb-h1", 0.9, trusted=True, iqr_s=0.0123)]
    shown = run_screen(120, rows)
    assert "974.7 us" not in shown
    assert "0.97 ms" in shown, shown
    assert "12.30 ms" in shown, shown
    assert "900 ms" not in shown.partition("details:")[0]


# --- links, engine, machine ----------------------------------------------------------------------


def link(label: str, *, ok: bool) -> dict[str, Any]:
    asked = {"rtt_s": 0.0204, "delay_s": 0.0102, "rate_bps": 1e9, "loss": 0.0}
    spread = {"minimum": 0.0204, "median": 0.020411, "p99": 0.0235, "samples": 100}
    measured = {"rtt_s": spread, "one_way_s": spread, "rate_bps": 999.7e6, "dropped": 0 if ok else 12, "losses": None}
    reasons = [] if ok else ["12 packets dropped", "RTT median 23.5 ms, asked 20.4 ms, allowed ±1 ms"]
    return {"label": label, "asked": asked, "measured": measured, "attempts": 3, "ok": ok, "reasons": reasons}


@pytest.mark.parametrize("width", WIDTHS)
def test_links(width: int) -> None:
    short = [link("paris->warsaw", ok=True), link("warsaw->paris", ok=False)]
    long = [link(f"{a}->{b}", ok=n % 3 == 0) for n, (a, b) in enumerate(pairwise(CHAIN))]
    unknown = link("a->b", ok=True)
    unknown["measured"] = {"rtt_s": None, "one_way_s": None, "rate_bps": None, "dropped": 0, "losses": None}
    lossy = [link("a->b", ok=True), link("b->a", ok=True)]
    lossy[0]["asked"]["loss"] = 0.012
    lossy[0]["measured"] = {**lossy[0]["measured"], "losses": {"sent": 500, "lost": 7}}
    for checks in (short, long, [unknown], lossy):
        shown = printed(width, *link_tables("two-dc-longhaul", checks, width))
        require_legible(shown, width)
    shown = printed(width, *link_tables("two-dc-longhaul", short, width))
    assert "warsaw->paris: 12 packets dropped" in shown
    assert "Mbit/s" not in shown  # asked 1 Gbit/s: what was measured is in the same unit
    assert "loss" not in shown
    shown = printed(width, *link_tables("lossy", lossy, width))
    assert "1.2%" in shown
    assert "1.4%" in shown
    plain = {"delay_s": 0.0102, "rate_bps": 1e9, "rtt": {"median": 0.1}, "measured_bps": 0.4e9, "retransmits": 1500}
    plain |= {"dropped": 12_345, "said": ["*** Error: RTNETLINK answers: No such file or directory"] * 2}
    require_legible(printed(width, *mininet_tables([plain, plain], width)), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_engine(width: int) -> None:
    times = {"count": 12_345, "median": 0.5e-3, "p90": 0.9e-3, "p99": 0.0123, "worst": 0.1234}
    size = {"message_bytes": 1e6, "inside_s": times, "across_s": times, "gloo_bytes": 61.2, "ready_wait_s": times}
    document: dict[str, Any] = {
        "clock": "real",
        "kernel": "6.1.0-28-cloud-amd64",
        "sizes": [size, size | {"gloo_bytes": None}],
    }
    document |= {"model": {"handover_s": 3e-6, "gloo_bytes": 64, "unnoticed_wait_s": 200e-6}}
    require_legible(printed(width, *engine_tables(document, width)), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_adds_a_feature_can_be_copied(width: int) -> None:
    findings = [FeatureCheck(p.name, False, "it is not there, " * 9, p.remedy, p.needed, p.otherwise) for p in _PROBES]
    findings += [FeatureCheck("user-mode-linux", False, "x" * 200, PACKAGE_COMMAND, needed=False)]
    findings += [FeatureCheck("time-travel", False, "no kernel", BUILD_COMMAND, needed=False)]
    shown = printed(width, *doctor_lines(findings))
    require_legible(shown, width)
    copied = re.sub(r" \\ *\n *", " ", shown)
    for finding in findings:
        assert finding.remedy in copied


@pytest.mark.parametrize("width", WIDTHS)
def test_spread_over_seeds(width: int) -> None:
    spreads = [SeedSpread(LONG_LABEL, 12.345678901, 12.3, 12.4, 0.0123), SeedSpread("1f1b", 0.8, 0.8, 0.8, 0.0)]
    require_legible(printed(width, *spread_tables(spreads, width)), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_events_between_iterations(width: int) -> None:
    times = {"before_s": 0.2344, "during_s": 0.2771, "after_s": 0.277}
    there = {"job": "a-job-with-a-name", **times, "before_predicted_s": 0.2345, "after_predicted_s": 0.2772}
    gone = {**dict.fromkeys(there), "job": "first", "before_s": 0.2341, "before_predicted_s": 0.2342}
    counted = {"after": 12, "flows": 1024, "flows_new": 96, "flows_moved": 512, "flows_cut": 128}
    event = {**counted, "label": f"{LONG_LABEL} without first", "choosing_s": 0.0248, "enforcing_s": 0.0094}
    shown = printed(width, *event_tables([{**event, "iterations": [gone, there]}], width))
    require_legible(shown, width)
    for cell in ("512", "34.2 ms", "277.1 ms", "277.0 ms / 277.2 ms", "234.1 ms / 234.2 ms", "- / -"):
        assert cell in " ".join(shown.split()), cell
    assert event_tables([], width) == []


def test_what_links_became_names_the_iteration_as_the_event_does() -> None:
    """Events count measured iterations, the tables of a run those that warm up, too."""
    took = {"job": "job", "predicted_s": 0.8, "measured_s": 0.8}
    event = {"label": "1f1b", "event": "link a rate 50 % at iteration 4", "iteration": 6, "measured_iteration": 4}
    event |= {"at_s": 0.0, "until_s": 0.0, "late_s": 0.0, "iterations": [took]}
    (table,) = link_event_tables([event], 200)
    assert list(table.columns[1].cells) == ["4"]


def test_a_row_that_the_model_does_not_cover_is_never_a_bare_yes() -> None:
    lossy = "loss is not in the model (a->b 0.1 %): what is lost is sent again, later than predicted"
    fields: dict[str, Any] = {"covered": False, "left_out": [lossy], "packets_lost": 35}
    shown = run_screen(80, [row("1f1b", 1.0, trusted=True, **fields), row("gpipe", 1.0, trusted=True)])
    lines = [line for line in shown.splitlines() if "1f1b" in line]
    assert "measured" in lines[0]
    assert "yes" not in lines[0]
    said = " ".join(shown.split())
    assert "1f1b: only the measurement can be trusted" in said
    assert f"{lossy} 1f1b: 35 packets lost" in said
    assert "measured ranking: nothing decided" in said
    assert "; not covered by the model: 1f1b (packets lost: 35)" in said
    assert max(map(len, shown.splitlines())) <= 80


def test_a_schedule_beyond_its_limit_of_bytes_says_so() -> None:
    bytes_ = dict.fromkeys(("activations", "parameters", "gradients", "optimizer", "buffers"), 8.552e6)
    memory = {"measured": [bytes_], "predicted": [bytes_], "activations_limit": [8.454e6], "over_limit": [0.0116]}
    shown = " ".join(run_screen(80, [row("zb-h1", 1.0, trusted=True, memory=memory)]).split())
    assert "zb-h1: rank 0 holds 1.2% more than its limit" in shown


# --- help ----------------------------------------------------------------------------------------


def test_every_option_has_its_group_and_every_command_examples_that_parse() -> None:
    """Of an example the words are looked at, not the files."""
    known = {name for names in GROUPS.values() for name in names}
    seen: set[str] = set()
    for path in every_command(typer.main.get_command(app)):
        command: Any = typer.main.get_command(app)
        for name in path:
            command = command.commands[name]
        if hasattr(command, "commands"):
            continue
        options = {max(one.opts, key=len) for one in command.params if one.param_type_name == "option"}
        assert options <= known, path
        seen |= options
        assert EXAMPLES[path[-1]], path
        for example in EXAMPLES[path[-1]]:
            _, _, words = example.rpartition("| ")[-1].partition(f"testbed {' '.join(path)}")
            command.make_context(path[-1], shlex.split(words))
    assert seen == known, "a group names an option that no command has"


def test_short_help_is_the_same_and_ends_with_what_a_user_looks_for() -> None:
    for words in (("run",), ("schedule", "compare"), ()):
        assert screen(80, *words, "-h") == screen(80, *words, "--help")
    shown = screen(80, "run", "-h")
    assert shown.index("Where it runs:") < shown.index("Examples:") < shown.index("Exit codes:")
    assert len(shown.partition("Examples:")[2].splitlines()) < 24, "what is left on the screen"
    assert shown.count("  5  it finished and cannot be trusted") == 1
