"""Damaged inputs: refused in one line that names file, field, value and what was expected, or read; nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzed_inputs import Samples, make_case, samples
from fuzzing import run_apart, run_here

CASES = 200
"""benchmarks/fuzz_inputs.py goes on to 20,000."""
APART = 2


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return samples(tmp_path_factory.mktemp("samples"))


def test_no_input_ends_in_a_traceback_a_hang_or_a_riddle(good: Samples, tmp_path: Path) -> None:
    faults, codes = [], set()
    for seed in range(CASES):
        outcome = run_here(make_case(seed, good, tmp_path / "case"))
        codes.add(outcome.code)
        if fault := outcome.fault():
            faults.append(f"case {seed} ({outcome.case.kind}): {fault}")
    assert not faults, "\n".join(faults[:20])
    assert {0, 2} <= codes, "some must be read, or nothing behind the first check was tried"


@pytest.mark.parametrize("seed", range(CASES, CASES + APART))
def test_a_process_of_its_own_needs_little_memory(good: Samples, tmp_path: Path, seed: int) -> None:
    outcome = run_apart(make_case(seed, good, tmp_path / "case"))
    assert not outcome.fault()


def test_a_seed_always_makes_the_same_case(good: Samples, tmp_path: Path) -> None:
    for seed in range(30):
        made = []
        for _ in range(2):
            case = make_case(seed, good, tmp_path / "case")
            files = sorted(path for path in (tmp_path / "case").rglob("*") if path.is_file() and not path.is_symlink())
            made.append((case, [(path.name, path.stat().st_size) for path in files]))
        assert made[0] == made[1]
