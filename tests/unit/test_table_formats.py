"""Tables in other forms (`--format`): what they say is what the terminal shows, and nothing else is on stdout."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest
import test_data_format
from in_process import run_testbed
from rich.console import Console
from rich.table import Table
from test_screens import every_command
from typer.main import get_command

from testbed.cli import app
from testbed.cli.help import PRINT_TABLES
from testbed.cli.table_formats import TableFormat, console_for_tables, written
from testbed.cli.table_layout import Column, Section, fitted

LONGHAUL, PP4 = "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml"
ODD = r"50% of A&B_c #1 ${x} ~ ^ \ a|b <i> [x] *y* `z`"


def table(*columns: Column, title: str = "a title") -> Table:
    (made,) = fitted(columns[0], [Section(title, columns[1:])], 100_000)
    return made


def frames(text: str) -> list[pd.DataFrame]:
    return [pd.read_csv(io.StringIO(part)) for part in text.split("\n\n")]


# --- commands ------------------------------------------------------------------------------------


def test_csv_has_the_numbers_of_the_prediction_in_si_units() -> None:
    shown = run_testbed("predict", LONGHAUL, PP4, "--format", "csv")
    assert shown.returncode == 0
    (frame,) = frames(shown.stdout)
    rows = json.loads(run_testbed("predict", LONGHAUL, PP4, "--json").stdout)["schedules"]
    assert list(frame["schedule"]) == [row["label"] for row in rows]
    for column, key, digits in (("iteration [s]", "predicted_s", 1e-4), ("bubble [1]", "bubble_predicted", 1e-3)):
        assert list(frame[column]) == pytest.approx([row[key] for row in rows], abs=digits), column
    assert list(frame["peak in flight"]) == [row["peak_in_flight_predicted"] for row in rows]
    assert "datacenter paris" in shown.stderr


@pytest.mark.parametrize("cells", [["313.3 ms", "never ends"], ["never ends"]])
def test_what_never_ends_is_infinite_among_seconds(cells: list[str]) -> None:
    made = table(Column("schedule", ["1f1b"] * len(cells), left=True), Column("predicted", cells))
    (frame,) = frames(written(made, TableFormat.csv))
    assert list(frame["predicted [s]"]) == [0.3133, float("inf")][-len(cells) :]


def test_what_several_jobs_take_is_one_table_without_gaps() -> None:
    (frame,) = frames(run_testbed("predict", LONGHAUL, PP4, PP4, "--set", "schedules=[1f1b]", "--format", "csv").stdout)
    assert list(frame["case"]) == ["1f1b", "1f1b"]
    assert frame["together [s]"].is_monotonic_increasing
    assert list(frame["slower by [1]"]) == pytest.approx(list(frame["together [s]"] / frame["alone [s]"] - 1), abs=1e-3)


def test_a_report_in_every_form_has_the_same_tables_and_splits_none(tmp_path: Path) -> None:
    test_data_format.write(tmp_path, test_data_format.found())
    told = {form: run_testbed("report", tmp_path, "--details", "--format", form.value) for form in TableFormat}
    assert {done.returncode for done in told.values()} == {0}
    of_csv = frames(told[TableFormat.csv].stdout)
    of_md = re.findall(r"^\*\*(.*)\*\*$", told[TableFormat.md].stdout, re.MULTILINE)
    assert len(of_csv) == len(of_md) == told[TableFormat.latex].stdout.count("\\begin{tabular}") == 5
    times, on_this_host, messages, verdict, answer = of_csv
    assert "bubble predicted [1]" in times
    assert set(messages["arrival: median [s]"]) == {0}
    assert len(verdict) > 10
    written_s = json.loads((tmp_path / "comparison.json").read_text())["schedules"][0]["measured_s"]
    assert float(answer["measured [s]"][0]) == pytest.approx(written_s, rel=1e-3)
    assert float(on_this_host["expected [s]"][0]) > 0
    assert told[TableFormat.md].stderr == told[TableFormat.latex].stderr == told[TableFormat.csv].stderr
    assert "checks: " in told[TableFormat.csv].stderr


def test_the_terminals_form_is_there_again_afterwards() -> None:
    before = run_testbed("predict", LONGHAUL, PP4).stdout
    assert run_testbed("predict", LONGHAUL, PP4, "--format", "md").stdout != before
    assert console_for_tables() is None
    assert run_testbed("predict", LONGHAUL, "nowhere.yaml", "--format", "md").returncode == 2
    assert console_for_tables() is None
    assert run_testbed("predict", LONGHAUL, PP4).stdout == before


WITH_TABLES = [path for path in every_command(get_command(app)) if path and path[-1] in PRINT_TABLES]


@pytest.mark.parametrize("path", WITH_TABLES, ids=" ".join)
def test_json_beside_a_format_is_refused_before_anything_is_done(path: tuple[str, ...]) -> None:
    arguments = {"baseline list": [], "report": ["nowhere"], "calibrate": ["a"], "compare-axes": ["b"]}
    arguments |= {"wan": ["a"], "study": ["a"], "sweep": ["a", "b", "--over", "c=1,2"]}
    done = run_testbed(*path, *arguments.get(" ".join(path), ["a", "b"]), "--format", "csv", "--json")
    said = "error: --format: option: got 'csv', expected no --json beside it: that prints results, this their tables\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_every_name_of_those_that_print_tables_is_a_command() -> None:
    assert {path[-1] for path in WITH_TABLES} == set(PRINT_TABLES)
    assert run_testbed("kernel", "build", "--format", "csv").returncode == 2


# --- forms ---------------------------------------------------------------------------------------


def test_markdown_is_escaped() -> None:
    text = written(table(Column("name", [ODD, "b"], left=True), Column("\ntime", ["1 ms", "-"])), TableFormat.md)
    title, empty, head, rule, first, second = text.splitlines()
    assert (title, empty, head, rule) == ("**a title**", "", "| name | time |", "| :--- | ---: |")
    cells = re.split(r"(?<!\\)\|", first.replace("\\\\", "\0"))
    assert len(cells) == 4
    assert re.sub(r"\\(.)", r"\1", cells[1]).replace("\0", "\\").strip() == ODD
    assert not re.search(r"(?<!\\)[*_`<\[]", first.replace("\\\\", ""))
    assert second == "| b | - |"


def test_latex_is_a_tabular_of_booktabs_in_which_nothing_is_a_command() -> None:
    made = table(Column("name", [ODD, "b"], left=True), Column("of\n100%", ["1", "2"]), Column("±", ["µ", "→"]))
    lines = written(made, TableFormat.latex).splitlines()
    assert lines[0].startswith("% a title")
    assert lines[1:3] == [r"\begin{tabular}{lrr}", r"\toprule"]
    assert lines[3] == r"name & of 100\% & $\pm$ \\"
    assert [lines[4], *lines[7:]] == [r"\midrule", r"\bottomrule", r"\end{tabular}"]
    assert lines[6] == r"b & 2 & $\rightarrow$ \\"
    row = lines[5].removesuffix(r" \\")
    known = r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar)\{\}|\\[&%$#_{}]|\{[][*]\}"
    assert not re.search(r"[\\~^#%_{}<>|]", re.sub(known, "", row).replace(r"$\mu$", ""))
    assert len(re.split(r"(?<!\\)&", row)) == 3


@pytest.mark.parametrize(
    ("heading", "cells", "expected"),
    [
        ("t", ["670.7 to 705.2 ms", "1 s", "-"], {"t low [s]": [0.6707, 1, None], "t high [s]": [0.7052, 1, None]}),
        ("rate", ["1 Gbit/s", "2.5 Mbit/s"], {"rate [bit/s]": [1e9, 2.5e6]}),
        ("e", ["+0.45%", "-1.20%"], {"e [1]": [0.0045, -0.012]}),
        ("off", ["+199 us", "0 s"], {"off [s]": [199e-6, 0]}),
        ("gain", ["1.24x", ""], {"gain": [1.24, None]}),
        ("b m/p", ["40.0% / 41%", "- / 1%"], {"b measured [1]": [0.4, None], "b predicted [1]": [0.41, 0.01]}),
        ("mixed", ["1 ms", "1 kB"], {"mixed": ["1 ms", "1 kB"]}),
        ("words", ["beyond 1 Gbit/s", "1 Gbit/s"], {"words": ["beyond 1 Gbit/s", "1 Gbit/s"]}),
        ("name", ["1f1b", "zb, h1"], {"name": ["1f1b", "zb, h1"]}),
        ("none", ["-", "-"], {"none": [None, None]}),
    ],
)
def test_csv_has_numbers_where_a_column_has_nothing_else(
    heading: str, cells: list[str], expected: dict[str, list[object]]
) -> None:
    key = Column("key", [str(number) for number in range(len(cells))])
    (frame,) = frames(written(table(key, Column(heading, cells)), TableFormat.csv))
    assert list(frame.columns) == ["key", *expected]
    for name, values in expected.items():
        found = [None if pd.isna(value) else value for value in frame[name]]
        assert found == values


def test_a_unit_that_only_the_title_says_counts() -> None:
    made = table(Column("flow", ["0 -> 1"], left=True), Column("late", ["+1.250"], unit="ms"))
    assert written(made, TableFormat.csv) == "flow,late [s]\n0 -> 1,0.00125\n"


def test_a_title_says_what_stands_before_the_stroke() -> None:
    key = Column("schedule", ["gpipe", "1f1b"], left=True)
    held = Column("activations", ["1.5 kB / 2 kB", "800 B / -"])
    made = table(key, held, Column("limit", ["-", "3 kB"]), title="memory, measured / predicted")
    assert written(made, TableFormat.csv).splitlines() == [
        "schedule,activations measured [B],activations predicted [B],limit [B]",
        "gpipe,1500,2000,",
        "1f1b,800,,3000",
    ]


def test_a_title_has_the_width_of_the_screen() -> None:
    """Not that of the columns below it, in which it would be broken into pieces."""
    title = "a title that is " + "longer " * 6
    made = table(Column("a", ["b"]), title=title)
    console = Console(width=80, file=io.StringIO())
    console.print(made)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[0].strip() == title.strip()
    assert made.title == title


def test_equal_headings_say_whose_they_are() -> None:
    made = table(
        Column("\nlink", ["a"]),
        *[Column(heading, ["1"]) for heading in ("RTT\nasked", "\nmedian", "rate\nasked", "\nmedian", "\nall")],
        *[Column(heading, ["1"]) for heading in ("1f1b", "off by", "zb-h1", "off by")],
    )
    head = written(made, TableFormat.csv).splitlines()[0].split(",")
    assert head[1:6] == ["RTT asked", "RTT median", "rate asked", "rate median", "all"]
    assert head[6:] == ["1f1b", "1f1b off by", "zb-h1", "zb-h1 off by"]


def test_a_unit_that_a_heading_names_becomes_the_si_one() -> None:
    made = table(
        Column("case", ["1f1b"], left=True),
        Column("median FCT\nm/p, ms", ["25.17 / 25.2"], unit="ms"),
        Column("filled\nMbit/s", ["66.5"], unit="Mbit/s"),
    )
    assert written(made, TableFormat.csv).splitlines() == [
        "case,median FCT measured [s],median FCT predicted [s],filled [bit/s]",
        "1f1b,0.02517,0.0252,66500000",
    ]


def test_regrets_of_drawn_slots_are_numbers_in_csv() -> None:
    words = ("two-dc-longhaul", "tiny-gpt-variable-length", "--schedule", "1f1b", "--schedule", "gpipe", "--noise", "3")
    shown = run_testbed("schedule", "compare", *words, "--format", "csv")
    drawn = frames(shown.stdout)[-1]
    assert (drawn.dtypes[["worst regret [s]", "relative [1]"]] == "float64").all()
