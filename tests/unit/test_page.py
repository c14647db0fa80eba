"""The web page of a report: drawn from files of every kind of run, itself alone, and safe whatever the files hold."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import shutil
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from damaged_results import damages
from hypothesis import given
from hypothesis import strategies as st
from in_process import Done, run_testbed

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from harness.plans import with_every
from parts.chromium import Tab, browser, program
from parts.generated_run import write_run

from testbed.cli.answer import answer
from testbed.judge.comparison import rows_of
from testbed.page.columns import NOTHING, packed, time_unit, unit_of, whole
from testbed.page.report_page import assets_bytes
from testbed.page.subject import Subject
from testbed.page.timelines_section import first_case, kept
from testbed.page.verdict_section import comparison
from testbed.plan.plan import Plan
from testbed.planning.resolve import load_plan
from testbed.results.load import load_run, load_traces
from testbed.thresholds import TIE

ROOT = Path(__file__).parents[2]
RECORDED = [ROOT / f"tests/recorded/format-{number}-run" for number in (1, 2, 3)]
OF_COMPARISONS = [ROOT / "tests/runs/demo", ROOT / "tests/runs/failed"]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{}}<!--"
MOST_BYTES = 600_000


class Elements(HTMLParser):
    """Every element with its attributes, and the text of those that hold some."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}, ""))  # what follows is of nobody

    def named(self, name: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for tag, attributes, text in self.found if tag == name]


def plan(*, iterations: int = 2) -> Plan:
    settings = ["schedules=[1f1b, zb-h1]", f"iterations={iterations}"]
    files = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
    return with_every(load_plan(*files, settings=settings))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generated") / "run"
    write_run(directory, plan(), 3)
    return directory


def paged(html: Path, *directories: Path) -> Elements:
    done = run_testbed("report", *directories, "--html", html)
    assert done.returncode == 0, done.stderr
    return Elements(html.read_text(encoding="utf-8"))


def data_of(page: Elements) -> dict[str, Any]:
    (text,) = (text for attributes, text in page.named("script") if attributes.get("id") == "data")
    found: dict[str, Any] = json.loads(text)
    return found


def renamed(directory: Path, label: str, into: str) -> None:
    """A run whose schedule has another name in every file."""
    for path in directory.glob("*.json"):
        path.write_text(path.read_text().replace(json.dumps(label), json.dumps(into)))
    for path in directory.glob("*.parquet"):
        frame = pd.read_parquet(path)
        frame["schedule"] = frame["schedule"].replace(label, into)
        frame.to_parquet(path)


# --- every kind of run ---------------------------------------------------------------------------


@pytest.mark.parametrize("directory", [*RECORDED, *OF_COMPARISONS], ids=lambda path: path.name)
def test_every_recorded_run_has_a_page_with_its_answer(tmp_path: Path, directory: Path) -> None:
    page = paged(tmp_path / "page.html", directory)
    compared = json.loads((directory / "comparison.json").read_text())["schedules"]
    said = " ".join(text for _, attributes, text in page.found if "answer" not in (attributes.get("id") or ""))
    for row in compared:
        assert row["label"] in said
    document = load_run(directory).comparison
    told = answer(rows_of(document), document.get("ranking_tie", TIE), document.get("events", ()))
    assert told[1:] in said  # which may begin with a capital
    for part in ("answer", "timelines", "iterations", "causes", "memory", "links", "network", "checks", "environment"):
        assert any(attributes.get("id") == part for attributes, _ in page.named("section")), part
    lanes = sum(len(run["cases"]) for run in data_of(page)["timelines"])
    assert lanes == (len({row["label"] for row in compared}) if directory in RECORDED else 0)


def test_several_runs_stand_beside_each_other(tmp_path: Path, generated: Path) -> None:
    page = paged(tmp_path / "page.html", generated, *RECORDED)
    data = data_of(page)
    assert [run["name"] for run in data["timelines"]] == ["run", *(path.name for path in RECORDED)]
    assert {one["name"].split()[0] for one in data["iterations"]} == {run["name"] for run in data["timelines"]}
    headings = [text for _, text in page.named("h3")]
    assert headings.count("run") == headings.count("format-2-run") >= 6


def test_a_speed_up_and_what_others_cost_are_two_columns(generated: Path) -> None:
    """Where a run of one job stands beside a run of several."""
    run = load_run(generated)
    job = {"job": "first", "start_s": 0.0, "predicted_alone_s": 0.5, "slowdown_predicted": 1.25}
    rows = [row | job for row in run.comparison["schedules"]]
    jobs = [{"name": "first", "first_rank": 0, "ranks": 4, "workload_seed": 1}]
    several = replace(run, comparison=run.comparison | {"jobs": jobs, "schedules": rows})
    table = Elements(comparison([Subject(generated, run, "", name="one"), Subject(generated, several, "", name="two")]))
    heads = [text for _, text in table.named("th")]
    width = heads.index("in flight m / p") + 1
    cells = [text for _, _, text in table.found if text][1 + width :]  # without caption and heads
    found = [dict(zip(heads, cells[at : at + width], strict=False)) for at in range(0, 4 * width, width)]
    assert [row["× 1f1b"] for row in found] == [f"{row['speedup_measured']:.2f}" for row in rows] * 2
    assert [row["others cost (predicted)"] for row in found] == ["-", "-", "+25.0%", "+25.0%"]


def test_runs_of_one_name_are_called_by_their_paths(tmp_path: Path, generated: Path) -> None:
    other = tmp_path / "elsewhere/run"
    shutil.copytree(generated, other)
    page = paged(tmp_path / "page.html", generated, other)
    assert [run["name"] for run in data_of(page)["timelines"]] == [str(generated), str(other)]


def test_an_incomplete_run_says_what_it_has_not(tmp_path: Path, generated: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(generated, directory)
    path = directory / "comparison.json"
    document = json.loads(path.read_text())
    document |= {"complete": False, "schedules": document["schedules"][:1]}
    path.write_text(json.dumps(document))
    for name in ("links.parquet", "messages.parquet", "plan.json"):
        (directory / name).unlink()
    text = " ".join(text for _, _, text in paged(tmp_path / "page.html", directory).found)
    assert "this run is incomplete: 1 of 2 schedules finished, not zb-h1" in text
    assert "Not shown: this run has no messages.parquet." in text
    assert "Not shown: this run has no plan.json and links.parquet." in text


def test_a_run_that_ended_before_it_measured_has_a_page(tmp_path: Path, generated: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    for name in ("links.json", "plan.json"):
        shutil.copy(generated / name, directory)
    page = paged(tmp_path / "page.html", directory)
    assert any("No schedule is finished." in text for _, _, text in page.found)
    assert any("paris->warsaw" in text for _, text in page.named("th"))


def test_the_page_opens_with_the_fastest_schedule_beside_1f1b(generated: Path, tmp_path: Path) -> None:
    (run,) = data_of(paged(tmp_path / "page.html", generated))["timelines"]
    assert run["first"] == ["zb-h1", "1f1b"]


# --- what is refused -----------------------------------------------------------------------------


def refused(done: Done, *words: str) -> None:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_bad_options_are_one_line_each(tmp_path: Path, generated: Path) -> None:
    refused(run_testbed("report", generated, generated / ".."), "2 directories", "--html")
    refused(run_testbed("report", generated, RECORDED[2], "--html", tmp_path / "a.html", "--json"), "2 directories")
    refused(run_testbed("report", generated, "--html", tmp_path / "page.txt"), "--html", "page.txt", ".html")
    refused(run_testbed("report", generated, "--html", tmp_path / "none/page.html"), "--html", "none/page.html")


@pytest.mark.parametrize("name", ["actions.parquet", "iterations.parquet", "links.parquet", "links.json", "plan.json"])
def test_a_damaged_file_is_an_error_and_no_page(tmp_path: Path, generated: Path, name: str) -> None:
    directory = tmp_path / "run"
    shutil.copytree(generated, directory)
    (directory / name).write_bytes(b"\xff\x00{")
    refused(run_testbed("report", directory, "--html", tmp_path / "page.html"), str(directory / name))
    assert list(tmp_path.iterdir()) == [directory]


EVERY = 101
"""So many damages apart are those that are tried here, of some thousands."""


def test_whatever_is_damaged_is_a_page_or_one_error(tmp_path: Path) -> None:
    for number, damage in enumerate(islice(damages(RECORDED[2]), 0, None, EVERY)):
        directory = tmp_path / f"run-{number}"
        shutil.copytree(RECORDED[2], directory)
        damage.apply(directory)
        done = run_testbed("report", directory, "--html", tmp_path / f"{number}.html")
        assert done.returncode in (0, 2), f"{damage.name}: {done.stderr}"
        assert "Traceback" not in done.stderr, damage.name
        assert (tmp_path / f"{number}.html").exists() == (done.returncode == 0), damage.name


# --- nothing from outside, nothing from a file as markup -----------------------------------------


def test_a_page_runs_its_own_script_only_and_asks_for_nothing(tmp_path: Path, generated: Path) -> None:
    page = paged(tmp_path / "page.html", generated)
    (policy,) = (
        attributes["content"] or ""
        for attributes, _ in page.named("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*|unsafe", policy)
    ((_, script),) = ((one, text) for one, text in page.named("script") if "type" not in one)
    ((_, style),) = page.named("style")
    for text in (script, style):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    for tag, attributes, _ in page.found:
        assert not {"src", "srcset", "style", "action", "background"} & attributes.keys(), tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("href") or "#").startswith(("#", "data:,")), tag
    assert not re.search(r"@import|url\(", style)


def test_what_a_file_holds_is_text(tmp_path: Path, generated: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(generated, directory)
    (directory / "plan.json").unlink()  # whose labels are refused
    renamed(directory, "zb-h1", HOSTILE)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest |= {"command": [HOSTILE], "kernel": HOSTILE, "lab": {HOSTILE: HOSTILE}, "warnings": [HOSTILE]}
    manifest["nodes"][0] = HOSTILE
    (directory / "manifest.json").write_text(json.dumps(manifest))
    page, good = paged(tmp_path / "page.html", directory), paged(tmp_path / "good.html", generated)
    assert [tag for tag, _, _ in page.found].count("script") == [tag for tag, _, _ in good.found].count("script")
    assert not page.named("img")
    assert not [name for _, attributes, _ in page.found for name in attributes if name.startswith("on")]
    data = data_of(page)
    assert HOSTILE in [case["label"] for case in data["timelines"][0]["cases"]]
    assert any(text == HOSTILE for _, text in page.named("th"))


def test_half_a_character_and_times_that_are_none_are_shown(tmp_path: Path, generated: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(generated, directory)
    links = json.loads((directory / "links.json").read_text())
    links["links"][0]["label"] = "half \ud800"
    (directory / "links.json").write_text(json.dumps(links))
    frame = pd.read_parquet(directory / "actions.parquet")
    frame.loc[frame["source"] == "measured", "end_s"] = np.nan
    frame.to_parquet(directory / "actions.parquet")
    page = paged(tmp_path / "page.html", directory)
    assert any(text == "half ?" for _, text in page.named("th"))
    assert data_of(page)["timelines"][0]["cases"][0]["measured"][0]["times"] == [["", None, None]]


def test_scripts_and_styles_are_small_and_the_vendored_one_is_the_one_named() -> None:
    assert assets_bytes() <= MOST_BYTES
    vendored = ROOT / "testbed/page/assets/vendor"
    version = re.match(
        r"/\*! https://github.com/leeoniya/uPlot \(v([\d.]+)\) \*/", (vendored / "uPlot.iife.min.js").read_text()
    )
    assert version
    said = (ROOT / "docs/dependencies.md").read_text()
    assert f"uPlot {version[1]}" in said
    for path in vendored.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest()[:16] in said, path.name
    assert "Permission is hereby granted" in (vendored / "uPlot-LICENSE.txt").read_text()


def test_all_assets_are_in_the_package() -> None:
    setup = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    tables = [node for node in ast.walk(setup) if isinstance(node, ast.Dict)]
    said = {
        key.value: value
        for table in tables
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    patterns = ast.literal_eval(said["testbed.page"])
    room = ROOT / "testbed/page"
    for path in room.rglob("assets/**/*.*"):
        name = str(path.relative_to(room))
        assert any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns), name


# --- colours -------------------------------------------------------------------------------------

VISION = {
    "any": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""What becomes of linear RGB, by Machado, Oliveira and Fernandes, 2009."""
APART, CONTRAST = 20.0, 4.5
"""Distance in CIE Lab at which two boxes beside each other are two colours; WCAG's least contrast of text."""


def linear(colour: str) -> Any:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: Any) -> Any:
    white = np.array([0.9505, 1.0, 1.0888])
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb / white
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(each)) for each in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("start", [":root {", ':root[data-theme="dark"] {', ':root:not([data-theme="light"]) {'])
def test_kinds_of_action_are_told_apart_by_everybody(start: str) -> None:
    block = (ROOT / "testbed/page/assets/page.css").read_text().split(start)[1].split("}")[0]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    for name, seen in VISION.items():
        found = {
            kind: lab(np.clip(np.array(seen) @ linear(colours[kind]), 0, 1)) for kind in ("f", "b", "i", "w", "lane")
        }
        for one, other in combinations(found, 2):
            assert np.linalg.norm(found[one] - found[other]) > APART, (name, one, other)
    for text, back in [(f"on-{kind}", kind) for kind in "fbiw"] + [
        (word, f"{word}-back") for word in ("good", "bad", "doubt")
    ]:
        assert contrast(colours[text], colours[back]) > CONTRAST, text
    for text in ("ink", "faint", "accent", "good", "bad", "doubt"):
        assert contrast(colours[text], colours["paper"]) > CONTRAST, text


# --- data ----------------------------------------------------------------------------------------

NUMBERS = st.lists(st.integers(NOTHING, 2**31 - 1), max_size=40)


def unpacked(text: str, rows: int) -> Iterator[list[int]]:
    """What the page's script makes of it, one number after the other."""
    data = zlib.decompress(base64.b64decode(text))
    for first in range(0, len(data), 4 * rows):
        planes = [data[first + plane * rows : first + (plane + 1) * rows] for plane in range(4)]
        value, column = 0, []
        for number in range(rows):
            turned = sum(plane[number] << 8 * place for place, plane in enumerate(planes))
            value = (value + ((turned >> 1) ^ -(turned & 1)) + 2**31) % 2**32 - 2**31
            column.append(value)
        yield column


@given(NUMBERS)
def test_columns_come_back_as_they_were(numbers: list[int]) -> None:
    column = np.array(numbers, np.int32)
    found = list(unpacked(packed({"a": column, "b": column[::-1].copy()}), max(1, len(numbers))))
    assert found == ([numbers, numbers[::-1]] if numbers else [])


FLOATS = st.floats(-1e300, 1e300) | st.sampled_from([np.nan, np.inf, -np.inf])


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_any_number_fits_in_its_unit(values: list[float]) -> None:
    column = np.array(values)
    unit = time_unit(column)
    for value, number in zip(values, whole(column, unit).tolist(), strict=True):
        if np.isfinite(value):
            assert abs(number * unit - value) <= 0.51 * unit + 1e-9 * abs(value)
        else:
            assert number == NOTHING
    assert unit_of(np.array([np.nan])) == 1.0


def test_a_page_has_every_action_to_the_microsecond(tmp_path: Path, generated: Path) -> None:
    page = paged(tmp_path / "page.html", generated)
    blocks = {attributes.get("id"): text for attributes, text in page.named("script")}
    (run,) = data_of(page)["timelines"]
    traces = load_traces(generated)
    for case in run["cases"]:
        for strip in case["measured"]:
            actions = strip["actions"]
            columns = dict(
                zip(actions["columns"], unpacked(blocks[actions["block"]] or "", actions["rows"]), strict=True)
            )
            table = traces[case["label"], "measured"].of_iteration(strip["iteration"]).actions
            wanted = table[np.lexsort((table["start_s"], table["rank"]))]
            assert columns["rank"] == wanted["rank"].tolist()
            assert columns["microbatch"] == wanted["microbatch"].tolist()
            for name in ("start", "end"):
                seconds = np.array(columns[name]) * actions["unit"]
                assert np.abs(seconds - wanted[f"{name}_s"]).max() <= 0.51e-6


def test_timelines_have_what_became_of_links_when_it_was(tmp_path: Path, generated: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(generated, run)
    comparison = json.loads((run / "comparison.json").read_text())
    label, said = comparison["schedules"][0]["label"], "link a--b rate 40 % at iteration 2"
    entry = {"label": label, "event": said, "iteration": 2, "at_s": 0.1, "until_s": 0.1, "late_s": 2e-3}
    comparison["link_events"] = [entry | {"iterations": []}]
    (run / "comparison.json").write_text(json.dumps(comparison))
    (found,) = data_of(paged(tmp_path / "page.html", run))["timelines"]
    for case in found["cases"]:
        events = {strip["iteration"]: strip["events"] for strip in case["measured"]}
        assert events.pop(2) == ([[pytest.approx(0.102), said]] if case["label"] == label else [])
        assert not any(events.values())


def test_what_happened_to_links_is_told_by_the_numbers_of_the_chart_and_of_events(
    tmp_path: Path, generated: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(generated, run)
    said = [f"link a--b rate {share} % at iteration {number}" for share, number in ((40, 0), (60, 1))]
    pd.DataFrame({"iteration": [0, 1, 2], "event": ["cut", *said]}).to_parquet(run / "link_events.parquet")
    table = pd.read_parquet(run / "iterations.parquet")
    assert table["warmup"][table["iteration"] == 0].all()
    assert not table["warmup"][table["iteration"] == 1].any()
    paged(html := tmp_path / "page.html", run)
    for line in ("0 (warm-up): cut", f"1 (measured 0): {said[0]}", f"2 (measured 1): {said[1]}"):
        assert f"<li>iteration {line}</li>" in html.read_text()


def test_of_many_iterations_the_typical_the_fastest_and_the_slowest_are_kept(generated: Path) -> None:
    trace = load_traces(generated)["1f1b", "measured"]
    table = pd.DataFrame({"iteration": [1, 2, 3], "makespan_s": [3.0, 1.0, 2.0]})
    actions = len(trace.actions)
    assert kept(table, trace, 3, actions) == [0, 1, 2, 3]
    assert kept(table, trace, 3, actions // 4) == [1, 2, 3]


def test_without_schedules_there_is_no_first_case() -> None:
    from testbed.page.subject import Subject
    from testbed.results.load import Run

    assert first_case(Subject(Path(), Run({}, {"schedules": []}, False, False), "")) == []


# --- in a browser --------------------------------------------------------------------------------

BROWSER = program()


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    if BROWSER is None:
        pytest.skip("no chromium here: Debian's package chromium has it")
    with browser(BROWSER) as found:
        yield found


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory, generated: Path) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    paged(path, generated)
    return path


def opened(tab: Tab, path: Path, **window: Any) -> Tab:
    tab.events.clear()
    tab.show(path, **window)
    return tab


def quiet(tab: Tab, path: Path) -> None:
    assert tab.complaints() == []
    assert tab.requested() == [path.resolve().as_uri()]
    assert not [event for event in tab.events if event["method"] == "Page.javascriptDialogOpening"]


@pytest.mark.parametrize("directories", [OF_COMPARISONS, RECORDED], ids=["comparisons", "recorded"])
def test_pages_make_no_complaint_and_ask_for_nothing(tab: Tab, tmp_path: Path, directories: list[Path]) -> None:
    path = tmp_path / "page.html"
    paged(path, *directories)
    opened(tab, path)
    tab.wait_for("document.querySelector('.uplot, #iterations-chart.note') !== null")
    quiet(tab, path)


def test_hostile_text_runs_nothing(tab: Tab, tmp_path: Path, generated: Path) -> None:
    directory, path = tmp_path / "run", tmp_path / "page.html"
    shutil.copytree(generated, directory)
    (directory / "plan.json").unlink()  # whose labels are refused
    renamed(directory, "zb-h1", HOSTILE)
    paged(path, directory)
    opened(tab, path)
    shown = tab.value("document.querySelector('#timeline-controls select').selectedOptions[0].textContent")
    assert shown == HOSTILE
    tab.press("n")
    assert HOSTILE in tab.value("document.getElementById('timeline-said').textContent")
    quiet(tab, path)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_boxes_have_the_colours_of_light_and_dark(tab: Tab, html: Path, dark: bool) -> None:
    opened(tab, html, dark=dark)
    at = "timeline.x(p, p.strip.seconds * 0.004), timeline.top(p, 0) + p.lane * 0.3"
    pixel = f"p.canvas.getContext('2d').getImageData({at}, 1, 1).data"
    drawn = tab.value(f"(() => {{ const p = timeline.panels[0]; return [...{pixel}] }})()")
    wanted = "#3d9be0" if dark else "#0072b2"
    assert drawn[:3] == [int(wanted[place : place + 2], 16) for place in (1, 3, 5)]
    quiet(tab, html)


def test_arrows_are_dashed_where_an_arrival_is_not_known(tab: Tab, html: Path) -> None:
    """A measured message that lay ready is drawn until it is taken, no arrival to hold against a predicted one."""
    opened(tab, html)
    tab.press("m")  # all messages
    counted = tab.value("""timeline.panels.map((panel) => {
        const { messages } = panel.strip, of = { solid: 0, dashed: 0, unknown: 0, all: 0 };
        for (const i of timeline.drawn(panel)) {
            let dashes = [];
            const context = { fill() {}, setLineDash(now) { dashes = now; } };
            context.stroke = (path) => { of[dashes.length ? "dashed" : "solid"] += path.lines; };
            const made = window.Path2D;
            window.Path2D = class { lines = 0; moveTo() {} closePath() {} lineTo() { this.lines++; } };
            timeline.strokeArrows(context, panel, [i], "black", 1, "");
            window.Path2D = made;
            of.all++;
            of.unknown += messages.arrived[i] === NOTHING;
        }
        return { title: panel.title, ...of };
    })""")
    for of in counted:
        assert of["dashed"] == of["unknown"]
        assert of["solid"] == of["all"] - of["unknown"]
    unknown = {of["title"].rpartition(" ")[2]: of["unknown"] for of in counted}
    assert unknown["predicted"] == 0 < unknown["measured"]
    legend = "document.getElementById('timeline-legend').textContent.includes('its arrival is not known')"
    assert tab.value(legend)
    tab.value("timeline.panels.length = 1; legend()")
    assert not tab.value(legend)
    quiet(tab, html)


def test_keys_zoom_select_and_switch(tab: Tab, html: Path) -> None:
    opened(tab, html)
    span = "timeline.to - timeline.from"
    before = tab.value(span)
    tab.press("+")
    assert tab.value(span) == pytest.approx(before / 2)
    tab.press("0")
    assert tab.value(span) == pytest.approx(before)
    schedule = "document.querySelector('#timeline-controls select').selectedOptions[0].textContent"
    first = tab.value(schedule)
    tab.press("j")
    assert tab.value(schedule) != first
    tab.press("k")
    assert tab.value(schedule) == first
    tab.wait_for("shownLast === shownNow")
    assert tab.value("timeline.panels[1].title") == "zb-h1, measured"
    tab.press("n")
    assert tab.wait_for("document.getElementById('timeline-said').textContent").startswith(
        "zb-h1, measured: F 0: forward"
    )
    tab.press("n")
    assert "F 1" in tab.value("document.getElementById('timeline-said').textContent")
    tab.press("?")
    assert tab.value("document.getElementById('keys').open")
    tab.press("Escape")
    theme = "document.documentElement.dataset.theme"
    tab.value("document.getElementById('keys').close()")
    tab.press("t")
    assert tab.value(theme) == "dark"
    tab.press("t")
    assert tab.value(theme) == "light"
    quiet(tab, html)


def test_paper_is_light_and_shows_all_panels(tab: Tab, html: Path) -> None:
    opened(tab, html, dark=True, height=300)
    assert tab.value("timeline.panels.some((panel) => panel.stale)")
    tab.ask("Page.printToPDF")
    tab.value("dispatchEvent(new Event('beforeprint'))")
    assert tab.value("document.documentElement.dataset.theme") == "light"
    assert not tab.value("timeline.panels.some((panel) => panel.stale)")
    tab.value("dispatchEvent(new Event('afterprint'))")
    assert tab.value("document.documentElement.dataset.theme ?? 'as the system'") == "as the system"
    quiet(tab, html)


def test_the_script_reads_columns_as_they_were_written(tab: Tab, html: Path) -> None:
    opened(tab, html)
    numbers = [0, 5, -7, 2**31 - 1, NOTHING, NOTHING, 12, -(2**31) + 1]
    text = packed({"a": np.array(numbers, np.int32), "b": np.array(numbers[::-1], np.int32)})
    script = f"""(async () => {{
        const bytes = await inflated(bytesOf("{text}"));
        return [0, 4 * {len(numbers)}].map((at) => [...summedUp(bytes, at, {len(numbers)})]);
    }})()"""
    assert tab.value(script) == [numbers, numbers[::-1]]


@pytest.mark.parametrize("width", [800, 1600])
def test_a_page_is_no_wider_than_its_window(tab: Tab, html: Path, width: int) -> None:
    opened(tab, html, width=width)
    tab.wait_for("document.querySelector('.uplot') !== null")
    assert tab.value("document.documentElement.scrollWidth") <= width
