"""`testbed wan` under real torchruns in two namespaces of the test's own, which no lab has shaped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from in_process import run_testbed
from processes import descendants, wait_until, wait_until_gone
from two_sites import NAMES, ending, said, two_sites

from testbed.errors import ExitCode
from testbed.judge.fidelity import IN_RUN, LINKS, MACHINE, TRAFFIC
from testbed.results.load import load_run, load_traces

pytestmark = pytest.mark.root

NETWORK = """
name: two-sites
datacenters:
  paris: {nodes: 4}
  warsaw: {nodes: 4}
links:
  - {between: [paris, warsaw], delay: 3 ms, rate: 500 Mbit/s}
"""
SMALL = (
    *("--set=microbatches=2", "--set=memory=2", "--set=pacing={F: 15 ms, I: 15 ms, W: 15 ms}", "--set=message=100 kB"),
    *("--set=warmup=1", "--schedule=1f1b", "--set=model.d_model=16", "--set=model.sequence=16"),
)
AHEAD_S = 1000


def planned(directory: Path, *words: str) -> None:
    (directory / "network.yaml").write_text(NETWORK, encoding="utf-8")
    job = Path(__file__).parents[2] / "workloads/tiny-gpt-pp4.yaml"
    done = run_testbed("plan", "network.yaml", job, *SMALL, *words, "-o", "plan.json", directory=directory)
    assert done.returncode == 0, done.stderr


def exit_codes(text: str) -> list[int]:
    """What torchrun says that its processes have ended with."""
    return [int(part.split()[0]) for part in text.split("exitcode  :")[1:]]


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("error: ")]


def trained(directory: Path, per_site: int, ahead_s: int, *words: str) -> list[str]:
    """What both torchruns say of a run that has finished, trusted or not: on a busy machine a check may fail."""
    with two_sites() as sites:
        processes = [
            sites.torchrun(site, directory, *words, per_site=per_site, ahead_s=ahead_s * site) for site in (0, 1)
        ]
        with ending(processes):
            told = said(processes)
    code = processes[0].returncode
    assert code == 0 or exit_codes(told[0]) == [ExitCode.UNTRUSTED], told[0]
    return told


def require_results_of_a_lab(out: Path, ranks: int) -> dict[str, Any]:
    """The files of a run, checked as far as they can be; returns the only entry of the comparison."""
    run = load_run(out)
    (entry,) = run.comparison["schedules"]
    assert run.complete
    assert run.comparison["shaper"] == "no emulation"
    assert entry["trusted"] is False
    assert set(entry["not_taken"]) == {LINKS, TRAFFIC, MACHINE, IN_RUN}
    passed = {check["question"] for check in entry["checks"] if check["ok"]}
    assert {"actions executed as planned", "microbatches held", "losses off one process's"} <= passed
    assert {"gradients off one process's", "segments sent again", "clocks of the machines"} <= passed
    measured = load_traces(out)["1f1b", "measured"]
    assert measured.n_ranks == ranks
    assert len(set(measured.iterations().tolist())) == 4
    # by one clock: nothing begins before the common start, and no message comes before it was sent
    assert measured.actions["start_s"].min() >= 0
    slack_s = 2 * json.loads((out / "wan.json").read_text())["uncertainty_s"]
    assert (measured.messages["taken_s"] - measured.messages["sent_s"]).min() > -slack_s
    assert measured.makespans().max() < 60
    assert {file.name for file in (out / "logs").iterdir()} == {f"rank{rank}.log" for rank in range(ranks)}
    return dict(entry)


def test_two_ranks_at_each_of_two_sites_train_by_clocks_that_differ(tmp_path: Path) -> None:
    planned(tmp_path, "--iterations=3")
    told = trained(tmp_path, 2, AHEAD_S, "plan.json", "--out", "out")
    entry = require_results_of_a_lab(tmp_path / "out", 4)
    wan = json.loads((tmp_path / "out/wan.json").read_text())
    first, second, third, fourth = wan["ranks"]
    for ours in (first, second):
        assert (ours["clock_offset_s"], ours["clock_uncertainty_s"]) == (0.0, 0.0)
    # both are one clock, so that the offset is exact: what is found has to hold it
    assert abs(third["clock_offset_s"] - AHEAD_S) <= third["clock_uncertainty_s"] < 0.1
    assert third["clock_offset_s"] == pytest.approx(fourth["clock_offset_s"], abs=1e-3), "a site has one clock"
    assert fourth["clock_uncertainty_s"] > 0
    rows = pd.read_parquet(tmp_path / "out/iterations.parquet")
    assert len(rows) == 4
    paths = {(path["source"], path["target"]): path for path in wan["paths"]}
    assert set(paths) == {NAMES, NAMES[::-1]}
    for path in paths.values():
        assert path["believed_round_trip_s"] == pytest.approx(6e-3)
        assert 0 < path["round_trip_least_s"] <= path["round_trip_s"]
        assert path["rate_bps"] > 0
    # a veth pair is no 3 ms, whatever the machine does meanwhile; the hint is a link as a topology has it
    (hint,) = wan["hints"]
    assert hint.startswith("in the topology, as measured: - {between: [paris, warsaw], delay: ")
    assert hint in load_run(tmp_path / "out").comparison["warnings"]
    assert "what could be checked is right" in told[0] or "NOT trusted" in told[0]
    again = run_testbed("report", "out", "--recheck", "--details", directory=tmp_path)
    assert again.returncode == (ExitCode.UNTRUSTED if entry["reasons"] else ExitCode.OK), again.stderr
    assert "says something else" not in again.stdout
    page = run_testbed("report", "out", "--html", "out.html", directory=tmp_path)
    assert page.returncode == 0, page.stderr


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Those of one torchrun that train."""
    named = [(pid, Path(f"/proc/{pid}/comm")) for pid in descendants(process.pid)]
    return [pid for pid, comm in named if comm.exists() and comm.read_text().startswith("rank ")]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("PPid:")[1].split()[0])


def wait_until_training(out: Path, processes: Sequence[subprocess.Popen[str]]) -> None:
    training = out / "message_costs.json"  # written before the first case
    wait_until(
        lambda: training.exists() or any(process.poll() is not None for process in processes), "it never trains", 300
    )
    assert all(process.poll() is None for process in processes), said(processes)


def killed(directory: Path, of: str) -> list[str]:
    """What both torchruns say when the worker of rank 1, or its keeper, is killed while it trains."""
    planned(directory, "--set=parallelism.pipeline=2", "--iterations=2000")
    with two_sites() as sites:
        processes = [sites.torchrun(site, directory, "plan.json", "--out", "out") for site in (0, 1)]
        with ending(processes):
            wait_until_training(directory / "out", processes)
            (worker,) = workers(processes[1])
            os.kill({"worker": worker, "keeper": parent(worker)}[of], signal.SIGKILL)
            told = said(processes)
    assert [process.returncode for process in processes] == [1, 1]
    return told


@pytest.mark.parametrize(
    ("of", "how", "codes"),
    [
        ("worker", "was killed by signal 9", [ExitCode.RUN_FAILED, ExitCode.RUN_FAILED]),
        ("keeper", "is gone: its process, its machine, or the network to it", [ExitCode.RUN_FAILED, -signal.SIGKILL]),
    ],
)
def test_a_rank_that_is_killed_is_named_and_ends_all(tmp_path: Path, of: str, how: str, codes: Sequence[int]) -> None:
    others = kept_by_keepers()
    told = killed(tmp_path, of)
    wait_until(lambda: not kept_by_keepers() - others, "a keeper's directory stays")
    assert [exit_codes(text) for text in told] == [[code] for code in codes], told
    (line,) = errors(told[0])
    assert line.startswith("error: rank 1 (")
    assert f") {how}" in line
    if of == "worker":
        assert errors(told[1]) == [line]  # on every machine that is left
    assert (tmp_path / "out/plan.json").exists()
    assert not (tmp_path / "out/comparison.json").exists()


def kept_by_keepers() -> set[Path]:
    """Their directories for logs."""
    return set(Path(tempfile.gettempdir()).glob("testbed-wan-*"))


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (signal.SIGTERM, "error: torchrun has ended rank 0: "),
        (signal.SIGKILL, "error: rank 0 has gone without a word"),
    ],
)
def test_the_end_of_rank_0_ends_all(tmp_path: Path, how: signal.Signals, what: str) -> None:
    planned(tmp_path, "--set=parallelism.pipeline=2", "--iterations=2000")
    others = kept_by_keepers()
    with two_sites() as sites:
        processes = [sites.torchrun(site, tmp_path, "plan.json", "--out", "out") for site in (0, 1)]
        with ending(processes):
            wait_until_training(tmp_path / "out", processes)
            started, scratch = descendants(processes[0].pid), kept_by_keepers() - others
            if how is signal.SIGTERM:  # as whoever stops a job does
                os.kill(processes[0].pid, how)
            else:
                (worker,) = workers(processes[0])
                os.kill(parent(parent(worker)), how)
            told = said(processes)
            wait_until_gone(started)
    assert scratch
    wait_until(lambda: not scratch & kept_by_keepers(), "a keeper's directory stays")
    assert exit_codes(told[1]) == [ExitCode.RUN_FAILED], told
    (line,) = errors(told[1])
    assert line.startswith(what), told


def refused(directory: Path, plans: Sequence[str]) -> list[str]:
    with two_sites() as sites:
        processes = [sites.torchrun(site, directory, plan, "--out", f"out-{site}") for site, plan in enumerate(plans)]
        with ending(processes):
            told = said(processes)
    assert [set(exit_codes(text)) for text in told] == [{ExitCode.BAD_INPUT}] * 2, told
    return told


def test_a_plan_that_one_machine_lacks_ends_all_at_once(tmp_path: Path) -> None:
    """Whatever else rank 0 finds wrong (tests/unit/test_wan.py) it says to all in this way."""
    planned(tmp_path, "--set=parallelism.pipeline=2", "--iterations=3")
    for text in refused(tmp_path, ["plan.json", "nothing.json"]):
        (line,) = errors(text)
        assert line.startswith("error: rank 1 (")
        assert "nothing.json" in line
