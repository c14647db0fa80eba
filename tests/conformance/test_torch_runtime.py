"""Exported schedules run in torch's own pipeline runtime and give the gradients of one process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from testbed.pipeline.ir import WHOLE
from testbed.pipeline.problem import uniform
from testbed.pipeline.torch_csv import Form, to_csv
from testbed.schedule.registry import FAMILIES, generate
from testbed.spec import Workload, load_workload
from testbed.train.data import load_corpus
from testbed.train.reference import train_reference

ROOT = Path(__file__).parents[2]
RANKS = 4
FORMATS = {"compute_only": 5, "compute_comms": 8}
"""By torch's names, and with how many microbatches: more than ranks, and twice as many."""
EACH_FORM = ("gpipe", "1f1b", "zb-h1", "crosspipe-greedy", "interleaved-1f1b", "zb-v", "dualpipe-v", "pipemorph")
CASES = [*((name, "compute_comms") for name in sorted(FAMILIES)), *((name, "compute_only") for name in EACH_FORM)]
"""Where messages are ours, every family; where torch adds them, whole and split backwards, parts of blocks that are
merged, two stages to a rank in a loop and in a V."""
TOLERANCE = 1e-12
DEADLINE_S = 200


def form_of(file_format: str) -> Form:
    """What we write in a format of torch's."""
    if file_format == "compute_only":
        return Form.COMPUTE_ONLY
    # here, as it takes two seconds, which every process that collects tests would need
    from torch.distributed.pipelining.schedules import _ComputationType

    return Form.COMMS_AND_WAITS if hasattr(_ComputationType, "WAIT_SEND_F") else Form.COMMS


def workload(microbatches: int) -> Workload:
    settings = {
        "parallelism.pipeline": str(RANKS),
        "microbatches": str(microbatches),
        # at least one block for each of eight stages: torch wants parameters in every one
        "model": "{layers: 8, d_model: 32, heads: 2, sequence: 16, dtype: float64}",
        "microbatch_size": "2",
    }
    return load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case, run by one group of processes; a rank's gradients are in name-format-rank.npz."""
    directory = tmp_path_factory.mktemp("torch")
    jobs = []
    for name, file_format in CASES:
        microbatches, placement = FORMATS[file_format], FAMILIES[name].stage_to_rank(RANKS)
        memory = float(2 * RANKS + microbatches)
        problem = uniform(RANKS, microbatches, memory=memory, delay_s=0.3, stage_to_rank=placement)
        limits = {"time_limit_s": 0.1} if "time_limit_s" in FAMILIES[name].option_names() else {}
        schedule = generate(name, problem, **limits)
        if name == "crosspipe-greedy":  # sub-blocks are merged for torch: they must be among what is tested
            assert any(action.part != WHOLE for _, action in schedule.actions())
        job = f"{name}-{file_format}"
        (directory / f"{job}.csv").write_text(to_csv(schedule, form_of(file_format)))
        jobs.append({"name": job, "format": file_format, "stages": placement, "microbatches": microbatches})
    (directory / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(Path(__file__).with_name("torch_runtime_worker.py")), str(RANKS), str(directory)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # in a session of their own, to end with all ranks
    workers = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        workers.wait(DEADLINE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(workers.pid, signal.SIGKILL)
        workers.wait(10)
    return directory


@pytest.fixture(scope="module")
def references() -> dict[str, dict[str, np.ndarray]]:
    corpus = load_corpus()
    trained = {
        name: train_reference(workload(microbatches), corpus, 1).gradients for name, microbatches in FORMATS.items()
    }
    return {
        name: {parameter: gradient.numpy() for parameter, gradient in gradients.items()}
        for name, gradients in trained.items()
    }


@pytest.mark.parametrize(("name", "file_format"), CASES)
def test_gradients_in_torchs_runtime(
    results: Path, references: dict[str, dict[str, np.ndarray]], name: str, file_format: str
) -> None:
    gradients: dict[str, np.ndarray] = {}
    for rank in range(RANKS):
        file = results / f"{name}-{file_format}-{rank}.npz"
        assert file.exists(), f"rank {rank} did not get so far:\n{(results / f'{rank}.log').read_text()[-2000:]}"
        with np.load(file) as saved:
            gradients |= dict(saved)
    expected = references[file_format]
    assert gradients.keys() == expected.keys()
    for parameter, gradient in gradients.items():
        worst = float(np.abs(gradient - expected[parameter]).max())
        assert worst <= TOLERANCE, f"{parameter} differs by {worst:.1e}"
