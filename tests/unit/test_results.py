"""Results of a run on disk: written schedule by schedule, older ones kept until newer ones are complete, read again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from testbed.cli import main
from testbed.errors import BadInput
from testbed.files import saving
from testbed.judge.comparison import MeasuredCase, as_document, compare
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.model.simulate import simulate
from testbed.pipeline.problem import uniform
from testbed.results import run_tables
from testbed.results.destination import PARTS, is_complete, require_place, results_directory
from testbed.results.directory import ResultsWriter
from testbed.results.load import TRACE_TABLES, Run, load_run, load_traces
from testbed.results.run_tables import frame_of
from testbed.schedule.registry import generate
from testbed.trace.summary import summaries
from testbed.trace.tables import FORMAT, Trace

ASKED = ("1f1b", "zb-h1")
DEADLINE_S = 60


def predicted(name: str) -> Trace:
    problem = uniform(4, 8, delay_s=2, cuts=(1,))
    return simulate(problem, generate(name, problem))


def write_run(directory: Path, *finished: str, seconds: float = 50.0) -> None:
    """What a run leaves that was to measure ASKED, after it has `finished` these."""
    results = ResultsWriter(directory)
    nodes = ["paris/0", "paris/1", "warsaw/0", "warsaw/1"]
    asked = [{"schedule": name, "label": name} for name in ASKED]
    results.save_json("manifest.json", {"format": FORMAT, "nodes": nodes, "schedules": asked})
    runs = []
    identity = {"name": "w on t", "shaper": "netem", "transport": "otn-lossless", "clock": "virtual"}
    for number, name in enumerate(finished):
        trace = predicted(name)
        peaks = (4.0, 3.0, 2.0, 1.0)
        row = IterationRow(0, False, seconds + number, 0.4, 5.0, peaks, peaks, 0, 0.0, 96, 0.0, Witnesses())
        results.add_trace(name, "predicted", trace)
        results.add_trace(name, "measured", trace)
        results.add_iterations(name, [row])
        runs.append(MeasuredCase(name, name, [row], summaries(trace)[0], []))
        complete = len(runs) == len(ASKED)
        results.save_tables()
        document = {**identity, "complete": complete, "ranking_as_predicted": True}
        results.save_json("comparison.json", as_document(document, compare(runs)))


def writer_of(directory: Path, *finished: str) -> ResultsWriter:
    """What has written these cases, each as soon as it was finished, and has not ended."""
    results = ResultsWriter(directory)
    results.save_json("manifest.json", {"format": FORMAT, "nodes": ["paris/0", "paris/1", "warsaw/0", "warsaw/1"]})
    for name in finished:
        results.add_trace(name, "predicted", predicted(name))
        results.add_trace(name, "measured", predicted(name))
        results.save_new()
    return results


@pytest.mark.parametrize("ended", [True, False])
def test_tables_of_who_wrote_there_before_are_gone_when_a_run_begins(tmp_path: Path, ended: bool) -> None:
    """A verdict is told from the files: it would be of both."""
    before = writer_of(tmp_path, "1f1b")
    if ended:
        before.save_tables()
    ResultsWriter(tmp_path).begin()
    assert not list(tmp_path.rglob("*.parquet"))
    writer_of(tmp_path, "zb-h1")
    assert set(frame_of(tmp_path / "actions.parquet", ["schedule"])["schedule"]) == {"zb-h1"}


def comparison(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "comparison.json").read_text())
    return document


def report(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["testbed", "report", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_every_case_writes_its_own_rows_alone(tmp_path: Path) -> None:
    results = writer_of(tmp_path, *ASKED)
    parts = sorted((tmp_path / PARTS).glob("messages-*.parquet"))
    assert [set(pq.read_table(part)["schedule"].to_pylist()) for part in parts] == [{"1f1b"}, {"zb-h1"}]
    before = [part.stat().st_mtime_ns for part in parts]
    results.save_new()  # nothing is new
    assert [part.stat().st_mtime_ns for part in sorted((tmp_path / PARTS).glob("messages-*"))] == before


def test_tables_are_the_same_whenever_they_are_read(tmp_path: Path) -> None:
    """While a run goes on, or after it was killed, from the parts; at its end from one file, as if written at once."""
    results = writer_of(tmp_path, *ASKED)
    assert load_run(tmp_path).has_traces
    paths = [tmp_path / f"{name}.parquet" for name in TRACE_TABLES]
    assert not any(path.exists() for path in paths)
    from_parts = [frame_of(path, []) for path in paths]
    of_one = load_traces(tmp_path, [ASKED[1]])
    assert [label for label, _ in of_one] == [ASKED[1]] * 2
    results.save_tables()
    assert not (tmp_path / PARTS).exists()
    for path, frame in zip(paths, from_parts, strict=True):
        pd.testing.assert_frame_equal(frame_of(path, []), frame)
    whole, alone = load_traces(tmp_path)[ASKED[1], "measured"], of_one[ASKED[1], "measured"]
    assert whole.messages.tobytes() == alone.messages.tobytes()


def test_a_session_writes_and_reads_tables_without_pandas_which_is_there_for_who_wants_it(tmp_path: Path) -> None:
    """Imported it would be with the first array, in every guest."""
    code = f"""
import sys
from pathlib import Path
import testbed.session.run
from testbed.results.directory import ResultsWriter
from testbed.results.load import load_traces
from testbed.results.run_tables import frame_of
here = Path({str(tmp_path)!r})
results = ResultsWriter(here)
results.begin()
traces = load_traces(here / "run")
results.add_trace("again", "measured", traces["1f1b", "measured"])
results.save_tables()
assert "pandas" not in sys.modules
assert set(frame_of(here / "actions.parquet", ()).schedule) == {{"again"}}
"""
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", "1f1b")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_of_measured_iterations_those_asked_for_are_read_alone(tmp_path: Path) -> None:
    write_run(tmp_path, *ASKED)  # iteration 0 is all that was measured
    assert list(load_traces(tmp_path, iterations=[7])) == [(name, "predicted") for name in ASKED]
    found = load_traces(tmp_path, [ASKED[0]], iterations=[0])
    assert list(found) == [(ASKED[0], source) for source in ("predicted", "measured")]


def test_rows_of_small_tables_and_of_large_ones_are_found_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, or file by file as pyarrow finds them; from parts too."""
    results = writer_of(tmp_path, *ASKED)
    for _ in range(2):
        for labels, iterations in (((), None), ([ASKED[1]], None), ((), [0]), ([ASKED[0]], [0, 7]), (["none"], [0])):
            few = load_traces(tmp_path, labels, iterations)
            with monkeypatch.context() as patched:
                patched.setattr(run_tables, "_FEW_ROWS", 0)
                many = load_traces(tmp_path, labels, iterations)
            assert list(few) == list(many)
            for one, other in zip(few.values(), many.values(), strict=True):
                assert one.actions.tobytes() == other.actions.tobytes()
                assert one.messages.tobytes() == other.messages.tobytes()
        results.save_tables()


def test_what_was_finished_is_read_after_a_kill_while_a_part_is_written(tmp_path: Path) -> None:
    results = writer_of(tmp_path, ASKED[0])
    with saving(tmp_path / PARTS / "actions-000002.parquet") as partial:
        partial.write_bytes(b"PAR1 and not more")
        assert list(load_traces(tmp_path)) == [(ASKED[0], source) for source in ("predicted", "measured")]
    (tmp_path / PARTS / "actions-000002.parquet").unlink()
    partial.write_bytes(b"PAR1 and not more")  # as it stays there where the writer is killed
    assert list(load_traces(tmp_path)) == [(ASKED[0], source) for source in ("predicted", "measured")]
    results.save_tables()
    assert list(load_traces(tmp_path)) == [(ASKED[0], source) for source in ("predicted", "measured")]


def test_older_parts_go_with_the_run_that_left_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    writer_of(out, ASKED[0])
    with results_directory(out, overwrite=True) as working:
        write_run(working, *ASKED)
    assert not (out / PARTS).exists()
    assert load_run(out).schedules == list(ASKED)


def test_traces_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_run(tmp_path, *ASKED)
    traces = load_traces(tmp_path)
    assert list(traces) == [(name, source) for name in ASKED for source in ("predicted", "measured")]
    for name in ASKED:
        written, found = predicted(name), traces[name, "predicted"]
        assert found.n_ranks == written.n_ranks
        for table, again in ((written.actions, found.actions), (written.messages, found.messages)):
            assert table.dtype == again.dtype
            for column in table.dtype.names or ():
                assert np.array_equal(table[column], again[column], equal_nan=table.dtype[column].kind == "f"), column
    assert pq.read_schema(tmp_path / "actions.parquet").metadata[b"testbed-format"] == str(FORMAT).encode()


def test_one_summary_tells_peaks_as_the_order_does() -> None:
    assert summaries(predicted("1f1b"))[0].peaks == (4, 3, 2, 1)


def test_a_prediction_knows_when_messages_were_taken() -> None:
    messages = predicted("1f1b").messages
    assert (messages["taken_s"] >= messages["arrived_s"]).all()
    assert (messages["taken_s"][messages["awaited"]] == messages["arrived_s"][messages["awaited"]]).all()
    assert (messages["taken_s"] > messages["arrived_s"]).any()


@pytest.mark.parametrize("name", [".lock", "logs", "plan.json", "comparison.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_written_through_a_link_that_was_prepared(tmp_path: Path, name: str, overwrite: bool) -> None:
    """Whoever prepares --out may not choose what a run, as root, overwrites."""
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    out.mkdir()
    if name == "logs":
        elsewhere.mkdir()
    else:
        elsewhere.write_text("theirs")
    (out / name).symlink_to(elsewhere)
    with pytest.raises(BadInput, match="--out"), results_directory(out, overwrite=overwrite):
        pass
    assert list(elsewhere.iterdir()) == [] if name == "logs" else elsewhere.read_text() == "theirs"


def test_a_link_that_comes_later_is_replaced_not_followed(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / "manifest.json").symlink_to(theirs)
    ResultsWriter(tmp_path).save_json("manifest.json", {})
    assert theirs.read_text() == "theirs"
    assert not (tmp_path / "manifest.json").is_symlink()


def test_another_format_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, *ASKED)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["format"]  # as the first version wrote it
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="format: got 1, expected format 4"):
        load_traces(tmp_path)


def test_a_killed_run_leaves_what_was_finished(tmp_path: Path) -> None:
    """A process of its own writes one schedule of two and dies by SIGKILL inside results_directory."""
    out = tmp_path / "out"
    script = (
        "import os, signal, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from test_results import write_run; from testbed.results.destination import results_directory\n"
        "with results_directory(Path(sys.argv[1]), overwrite=False) as working:\n"
        "    write_run(working, '1f1b'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, str(out), str(Path(__file__).parent)]
    done = subprocess.run(command, timeout=DEADLINE_S, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    assert not is_complete(out)
    assert load_run(out).schedules == ["1f1b"]
    assert ("1f1b", "measured") in load_traces(out)
    with results_directory(out, overwrite=True) as working:  # nobody holds it any more
        write_run(working, *ASKED)
    assert load_run(out).schedules == list(ASKED)


def test_schedules_of_one_family_are_told_apart_by_label() -> None:
    near, far = ({"schedule": "geopipe", "label": label} for label in ("near", "far"))
    run = Run({"schedules": [near, far]}, {"schedules": [near]}, complete=False, has_traces=True)
    assert (run.asked, run.schedules) == (["near", "far"], ["near"])


def test_older_results_stay_until_newer_ones_are_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with results_directory(out, overwrite=False) as working:
        assert working == out
        write_run(working, *ASKED, seconds=50)
    (out / "notes.txt").write_text("mine")
    with results_directory(out, overwrite=True) as working:
        write_run(working, "1f1b", seconds=60)
    assert comparison(out)["schedules"][0]["measured_s"] == 50
    assert f"incomplete ones are in {working}/" in capsys.readouterr().err
    assert load_run(working).schedules == ["1f1b"]
    with results_directory(out, overwrite=True) as working:
        write_run(working, *ASKED, seconds=70)
        (working / "logs/rank0.log").write_text("new")
        assert comparison(out)["schedules"][0]["measured_s"] == 50
    assert comparison(out)["schedules"][0]["measured_s"] == 70
    assert not working.exists()
    assert (out / "logs/rank0.log").read_text() == "new"
    assert (out / "notes.txt").read_text() == "mine"


def test_nothing_new_leaves_nothing_beside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with results_directory(out, overwrite=False) as working:
        write_run(working, *ASKED)
    with results_directory(out, overwrite=True):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert is_complete(out)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    for overwrite in (False, True):
        with (
            results_directory(tmp_path / "out", overwrite=True),
            pytest.raises(BadInput, match="no other run is writing to"),
            results_directory(tmp_path / "out", overwrite=overwrite),
        ):
            pass


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="a new or empty directory"), results_directory(tmp_path, overwrite=False):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(BadInput, match="not a file"), results_directory(tmp_path / "notes.txt", overwrite=True):
        pass


def test_a_report_fits_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, *ASKED)
    monkeypatch.setenv("COLUMNS", "80")
    assert report(str(tmp_path), monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    table = [line for line in said.splitlines() if line.startswith(("│", "┃"))]
    assert len(table) == 3, "a head, and a line for each schedule"
    assert max(map(len, table)) <= 80
    assert "…" not in said
    assert "incomplete" not in said
    assert "zb-h1 - measured" in (tmp_path / "timeline.svg").read_text()


def test_a_report_of_an_incomplete_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "1f1b")
    assert report(str(tmp_path), "--svg", str(tmp_path / "other.svg"), monkeypatch=monkeypatch) == 0
    assert "incomplete: 1 of 2 schedules finished, not zb-h1" in capsys.readouterr().out
    assert "1f1b - measured" in (tmp_path / "other.svg").read_text()
    assert not (tmp_path / "timeline.svg").exists()
    assert report(str(tmp_path), "--json", monkeypatch=monkeypatch) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["complete"] is False
    (tmp_path / "comparison.json").unlink()  # as if killed before the first schedule was finished
    assert report(str(tmp_path), monkeypatch=monkeypatch) == 0
    assert "incomplete: 0 of 2 schedules finished" in capsys.readouterr().out
    assert report(str(tmp_path), "--recheck", monkeypatch=monkeypatch) == 2
    assert "finished schedules: got 0, expected one or more: there is no verdict" in capsys.readouterr().err


def test_a_report_of_what_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(str(tmp_path), monkeypatch=monkeypatch) == 2
    assert "expected the results of a run" in capsys.readouterr().err
    (tmp_path / "manifest.json").write_text("[1]")
    assert report(str(tmp_path), monkeypatch=monkeypatch) == 2
    assert "expected an object: a JSON document of a run" in capsys.readouterr().err


def test_what_failed_before_it_measured_anything_is_no_result(tmp_path: Path) -> None:
    """A second run into the same directory needs no --overwrite, and finds nothing of the first."""
    with results_directory(tmp_path / "out", overwrite=False) as working:
        (working / "plan.json").write_text("{}")
        (working / "links.json").write_text("{}")
    require_place(tmp_path / "out", overwrite=False)
    with results_directory(tmp_path / "out", overwrite=False) as working:
        assert working == tmp_path / "out"
        assert not (working / "links.json").exists()
        (working / "actions.parquet").touch()
    with pytest.raises(BadInput, match="new or empty"):
        require_place(tmp_path / "out", overwrite=False)
