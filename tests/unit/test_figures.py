"""docs/figures.md is what the records of benchmarks say, and every command on it is one that can be typed."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import figures
from harness import options, record
from harness.record import Claim, Figure, Origin, Topic

from testbed.cli import app

ROOT = Path(__file__).parents[2]
RECORDS = figures.records()
COMMANDS = sorted({figure.origin.command for figure in RECORDS})
CLAIM = Claim("a claim", "<= 1%", "0.5%", passed=True, value=0.005, unit="share", taken=3, of=3)


def test_the_page_is_what_the_records_say() -> None:
    made = figures.page(RECORDS)
    assert (ROOT / "docs/figures.md").read_text(encoding="utf-8") == made, "python benchmarks/figures.py makes it anew"
    assert len(made.splitlines()) <= 250, "one page of claims is no diary"


@pytest.mark.parametrize("command", [one for one in COMMANDS if not one.startswith("python ")])
def test_other_commands_exist(command: str) -> None:
    program, first, *rest = shlex.split(command)
    if program == "testbed":
        said = CliRunner().invoke(app, [first, "--help"], env={"COLUMNS": "200"}, color=False)
        assert said.exit_code == 0
        for word in (word for word in rest if word.startswith("--")):
            assert word in said.output
        assert all((ROOT / word).is_file() for word in rest if word.endswith(".yaml"))
    elif program == "make":
        assert f"\n{first}:" in (ROOT / "Makefile").read_text()
    else:
        assert (ROOT / (first if program == "pytest" else program)).is_file()


@pytest.mark.parametrize(
    ("claim", "state"),
    [
        (CLAIM, "yes"),
        (replace(CLAIM, taken=2), "part"),
        (replace(CLAIM, taken=2, passed=False), "MISSED"),
        (replace(CLAIM, passed=None), "info"),
    ],
)
def test_a_claim_is_kept_only_by_all_of_its_cases(claim: Claim, state: str) -> None:
    assert claim.state == state
    origin = Origin("python benchmarks/x.py", "abc1234", "2026-11-23", record.machine("virtual"))
    assert f"| {figures.SHOWN[state]} | a claim |" in figures.page([Figure(Topic.SPEED, claim, origin)])


def test_what_is_recorded_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "FIGURES", tmp_path)
    words = ["--plans", "3", "--out", "/somewhere/else", "--recorded", "--record", "mine", "--seed", "2"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/ranges.py", *words])
    parser = options.parser(None)
    options.add_drawn(parser, "ranges", plans=300, per_boot=20)
    assert record.finish(parser.parse_args(), Topic.TRUTH, [CLAIM]) == 0
    assert record.finish(parser.parse_args(), Topic.TRUTH, [replace(CLAIM, taken=2)]) == 1
    other = replace(CLAIM, claim="of another part", taken=CLAIM.of)
    assert record.finish(parser.parse_args(), Topic.TRUTH, [other], others_stay=True) == 0
    figure, _ = record.read(tmp_path / "mine.json")
    assert figure.claim == replace(CLAIM, taken=2)
    assert figure.origin.command == "python benchmarks/ranges.py --plans 3 --seed 2"
    assert figure.origin.machine["clock"] == "virtual"
    assert not figure.origin.carried
