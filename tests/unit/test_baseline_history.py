"""Baselines from check to check: what is kept, how it is shown, and in which formats other programs take it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from in_process import Done, run_testbed

from testbed.baseline import history
from testbed.baseline.ci_formats import FORMATS, badge_of
from testbed.baseline.history import CheckRecord, Machine, ScheduleRecord, sparkline
from testbed.baseline.regression import CheckVerdict
from testbed.baseline.tolerance import Mode
from testbed.errors import BadInput

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
ODD_LABEL = "a <b> & \"c\" 'd' $x_1$ é"
MACHINE = Machine("x86_64", 2, "6.12", "3.11.2")


def row(schedule: str, seconds: float | None, baseline: str = "longhaul", **fields: Any) -> ScheduleRecord:
    record = ScheduleRecord(baseline, Mode.virtual, schedule, "", seconds, 0.8, CheckVerdict.same, "7.2-abc")
    return replace(record, **fields)


def check(day: int, *rows: ScheduleRecord, **fields: Any) -> CheckRecord:
    same = all(one.verdict is CheckVerdict.same for one in rows)
    commit = f"{day:02d}" * 20
    record = CheckRecord(
        1, f"2026-11-{day:02d}T12:00:00+00:00", commit, False, "0.1.0", "0" * 64, MACHINE, same, tuple(rows)
    )
    return replace(record, **fields)


CHECKS = (
    check(1, row("1f1b", 0.8), row(ODD_LABEL, 0.7)),
    check(2, row("1f1b", 0.8), row(ODD_LABEL, 0.71, verdict=CheckVerdict.slower)),
    check(3, row("1f1b", 0.8), row(ODD_LABEL, None, verdict=CheckVerdict.failed), modified=True),
    check(
        4,
        row("1f1b", 0.84, verdict=CheckVerdict.slower),
        row(ODD_LABEL, 0.7),
        row("1f1b", None, "other", mode=Mode.predict, job="wide", kernel=None),
        machine=replace(MACHINE, cpus=64),
    ),
)


def kept(directory: Path, checks: Sequence[CheckRecord] = CHECKS) -> Path:
    for one in checks:
        history.append(directory, one)
    return directory


def shown(*words: str | Path) -> Done:
    return run_testbed("baseline", "history", *words)


# --- the file ------------------------------------------------------------------------------------


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    place = kept(tmp_path / "new" / "place")
    assert history.read(place) == list(CHECKS)
    lines = (place / history.FILE).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(json.dumps(asdict(one))) for one in CHECKS]


def test_a_line_without_its_end_is_a_line(tmp_path: Path) -> None:
    place = kept(tmp_path, CHECKS[:1])
    (place / history.FILE).write_text((place / history.FILE).read_text().rstrip("\n"))
    assert history.read(kept(place, CHECKS[1:])) == list(CHECKS)


APPENDING = """
import sys
from pathlib import Path
from testbed.baseline import history
directory = Path(sys.argv[1])
for _ in range(8):
    history.append(directory, history.read(directory)[0])
"""


def test_checks_that_end_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    kept(tmp_path, CHECKS[:1])
    started = [subprocess.Popen([sys.executable, "-c", APPENDING, str(tmp_path)], cwd=ROOT) for _ in range(3)]
    assert [process.wait(timeout=60) for process in started] == [0, 0, 0]
    assert history.read(tmp_path) == [CHECKS[0]] * 25
    assert {path.name for path in tmp_path.iterdir()} == {history.FILE, ".lock"}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('{"format": 1', '{"format": 2', "line 2: format: got 2, expected "),
        ("2026-11-02T", "yesterday ", "line 2: time: got 'yesterday 12:00:00+00:00', expected a date"),
        (
            '"measured_s": 0.71',
            '"measured_s": -1',
            "line 2: schedules.1.measured_s: got -1.0, expected a time above 0",
        ),
        ('"measured_s": 0.71', '"measured_s": NaN', "line 2: file: got 'NaN is not JSON'"),
        ('"verdict": "slower"', '"verdict": "slow"', "line 2: schedules.1.verdict: got 'slow', expected"),
        ('"commit": ', '"commmit": ', "line 2: commit: "),
        ("}\n", "\n", "line 2: file: got "),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, before: str, after: str, message: str) -> None:
    place = kept(tmp_path / "kept")
    file = place / history.FILE
    lines = file.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace(before, after)
    file.write_text("".join(lines))
    for work in (lambda: history.read(place), lambda: history.append(place, CHECKS[0])):
        with pytest.raises(BadInput) as caught:
            work()
        assert message in str(caught.value)
        assert f"kept/{history.FILE}, line 2: " in str(caught.value)
    assert file.read_text() == "".join(lines), "it is left as it was"
    done = shown(place)
    assert done.returncode == 2
    assert f"{history.FILE}, line 2: " in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "nowhere/history.jsonl: file: got "),
        (("kept", "third"), "name: got 'third', expected one of longhaul, other"),
        (
            ("kept", "--write", "xml=a"),
            "--write: option: got 'xml=a', expected FORMAT=FILE, with a FORMAT of ",
        ),
        (("kept", "--write", "badge"), "--write: option: got 'badge', expected FORMAT=FILE"),
        (("kept", "--write", "badge=a", "--write", "bencher=./a"), "expected a file of its own for each FORMAT"),
        (("kept", "--write", "badge=/proc/nowhere/x"), "--write: file: got '/proc/nowhere/x', expected a file"),
        (("kept", "--picture", "a.txt"), "--picture: file: got 'a.txt', expected a name that ends in .svg or .png"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    kept(tmp_path / "kept")
    done = shown(tmp_path / words[0], *words[1:])
    assert done.returncode == 2, done
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- how it is shown -----------------------------------------------------------------------------


def test_the_table_says_what_became_of_each_schedule(tmp_path: Path) -> None:
    done = run_testbed("baseline", "history", kept(tmp_path), COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (first,) = [line for line in lines if "longhaul: 1f1b" in line and "│" in line]
    assert [cell.strip() for cell in first.split("│")[1:-1]] == [
        "longhaul: 1f1b",
        "840.000 ms",
        "+5.000%",
        "▁▁▁█",
        "slower",
    ]
    assert "▁█x▁" in done.stdout, "no time in the third"
    assert "predictions (4 checks, 2026-11-01 to 2026-11-04)" in done.stdout
    assert f"2026-11-03 0303030+ longhaul: {ODD_LABEL}: failed" in lines
    assert lines[-1].startswith("made on 2 machines")


def test_many_checks_and_long_names_fit_the_screen(tmp_path: Path) -> None:
    label = "crosspipe-greedy(memory=8,n_sub=4,receives=when-reached) + zb-h1"
    one = row(label, 0.8, "a-baseline-with-a-name-of-sixty-characters-as-long-as-can-be", job="a-job")
    checks = [check(day, replace(one, measured_s=0.8 + day / 100, verdict=CheckVerdict.slower)) for day in range(1, 29)]
    done = run_testbed("baseline", "history", kept(tmp_path, checks), COLUMNS="80")
    table = [line for line in done.stdout.splitlines() if line[:1] in "┏┃┡│└"]
    assert max(map(len, table)) <= 80
    assert '18 earlier verdicts that were not "same"' in done.stdout
    assert shown(tmp_path, "--last", "3").stdout.count("slower") == 4


def test_json_holds_checks_and_series(tmp_path: Path) -> None:
    done = shown(kept(tmp_path), "longhaul", "--json")
    document = json.loads(done.stdout)
    assert [one["commit"][:2] for one in document["checks"]] == ["01", "02", "03", "04"]
    assert [(one["baseline"], one["schedule"]) for one in document["series"]] == [
        ("longhaul", "1f1b"),
        ("longhaul", ODD_LABEL),
    ]
    assert [point["time_s"] for point in document["series"][1]["points"]] == [0.7, 0.71, None, 0.7]
    assert [point["check"] for point in document["series"][1]["points"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("times_s", "line"),
    [
        ([1.0, 1.0, 1.0], "▁▁▁"),
        ([1.0, 1.0 + 1e-9], "▁▁"),
        ([1.0, 2.0, 1.5], "▁█▅"),
        ([None, 1.0], "x▁"),
        ([None, None], "xx"),
        ([], ""),
    ],
)
def test_a_sparkline_is_flat_where_nothing_changed(times_s: list[float | None], line: str) -> None:
    assert sparkline(times_s) == line


def test_the_picture_has_a_panel_per_baseline_and_every_label(tmp_path: Path) -> None:
    place, file = kept(tmp_path / "kept"), tmp_path / "times.svg"
    assert shown(place, "--picture", file).returncode == 0
    texts = [
        "".join(one.itertext()).strip() for one in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "longhaul (virtual clock)" in texts
    assert "other (prediction)" in texts
    assert {"1f1b", ODD_LABEL, "1f1b (wide)", "0303030+"} <= set(texts)


def test_a_history_without_any_time_has_no_picture(tmp_path: Path) -> None:
    place = kept(tmp_path / "kept", [check(1, row("1f1b", None, verdict=CheckVerdict.failed))])
    done = shown(place, "--picture", tmp_path / "times.svg")
    assert done.returncode == 2
    assert "--picture: checks: got 1, expected at least one in which a schedule has a time" in done.stderr
    assert not (tmp_path / "times.svg").exists()


# --- formats of others ---------------------------------------------------------------------------


def test_bencher_metric_format_has_nanoseconds() -> None:
    document = json.loads(FORMATS["bencher"](CHECKS[1]))
    assert document.keys() == {"longhaul: 1f1b", f"longhaul: {ODD_LABEL}"}
    assert document["longhaul: 1f1b"] == {"latency": {"value": pytest.approx(0.8e9)}}
    assert json.loads(FORMATS["bencher"](CHECKS[2])).keys() == {"longhaul: 1f1b"}, "without a time: left out"


def test_github_action_benchmark_has_smaller_is_better() -> None:
    found = json.loads(FORMATS["github-benchmark"](CHECKS[3]))
    assert found[1] == {
        "name": f"longhaul: {ODD_LABEL}",
        "unit": "ms",
        "value": pytest.approx(700),
        "extra": "same (0404040)",
    }
    assert found[2]["name"] == "other: 1f1b (wide)"
    assert found[2]["value"] == pytest.approx(800), "a prediction's own time"


@pytest.mark.parametrize(("number", "said", "colour"), [(0, "1/1", "#2e7d32"), (3, "1/2", "#c62828")])
def test_the_badge_counts_baselines(number: int, said: str, colour: str) -> None:
    root = ElementTree.fromstring(FORMATS["badge"](CHECKS[number]))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("aria-label") == f"baselines: {said}"
    assert [one.get("fill") for one in root.iter("{http://www.w3.org/2000/svg}rect")][1] == colour
    assert [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")] == ["baselines", said]


def test_a_badge_holds_any_words() -> None:
    root = ElementTree.fromstring(badge_of(ODD_LABEL, '<&">', good=True))
    assert [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")] == [ODD_LABEL, '<&">']
    assert root.get("aria-label") == f'{ODD_LABEL}: <&">'


# --- the command that writes them ----------------------------------------------------------------


def test_a_check_is_appended_and_written(tmp_path: Path) -> None:
    root, place = tmp_path / "baselines", tmp_path / "kept"
    saved = ("save", "mine", LONGHAUL, PP4, "--schedule", "1f1b", "--predict-only", "--baselines", root)
    assert run_testbed("baseline", *saved).returncode == 0
    files = {name: tmp_path / f"{name}.out" for name in FORMATS}
    written = [word for name, file in files.items() for word in ("--write", f"{name}={file}")]
    done = run_testbed("baseline", "check", "--baselines", root, "--history", place, *written)
    assert done.returncode == 0, done.stderr
    (record,) = history.read(place)
    assert {name: file.read_text() for name, file in files.items()} == {
        name: made(record) for name, made in FORMATS.items()
    }
    (one,) = record.schedules
    assert (one.baseline, one.mode, one.schedule, one.verdict) == ("mine", Mode.predict, "1f1b", CheckVerdict.same)
    assert one.predicted_s == json.loads((root / "mine/comparison.json").read_text())["schedules"][0]["predicted_s"]
    assert record.commit is None or len(record.commit) == 40
    files["badge"].unlink()
    assert shown(place, "--write", f"badge={files['badge']}").returncode == 0
    assert "1/1" in files["badge"].read_text()


def test_nothing_is_measured_where_it_could_not_be_kept(tmp_path: Path) -> None:
    place = kept(tmp_path / "kept", CHECKS[:1])
    (place / history.FILE).write_text("not JSON\n")
    asked = ("baseline", "check", "--predict-only", "small-longhaul", "-q")
    for words, message in (
        (("--history", place), f"{place}/{history.FILE}, line 1: file: got "),
        (("--history", tmp_path / "kept" / history.FILE), "--history: directory: got "),
        (("--history", place, "--set", "iterations=2"), "expected no --set beside it"),
        (("--write", "badge=/proc/nowhere/x.svg"), "--write: file: got '/proc/nowhere/x.svg'"),
    ):
        done = run_testbed(*asked, *words)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
