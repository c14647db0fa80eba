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
SHAPES = {2: 5, 4: 8}
"""Ranks -> microbatches."""
NAMES = sorted(FAMILIES)
FORMATS = ("compute_only", "compute_comms")
"""By torch's names."""
TOLERANCE = 1e-12
DEADLINE_S = 200


def form_of(file_format: str) -> Form:
    """What we write in a format of torch's."""
    if file_format == "compute_only":
        return Form.COMPUTE_ONLY
    # here, as it takes two seconds, which every process that collects tests would need
    from torch.distributed.pipelining.schedules import _ComputationType

    return Form.COMMS_AND_WAITS if hasattr(_ComputationType, "WAIT_SEND_F") else Form.COMMS


def workload(ranks: int) -> Workload:
    settings = {
        "parallelism.pipeline": str(ranks),
        "microbatches": str(SHAPES[ranks]),
        # at least one block for each of eight stages: torch wants parameters in every one
        "model": "{layers: 8, d_model: 32, heads: 2, sequence: 16, dtype: float64}",
        "microbatch_size": "2",
    }
    return load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)


@pytest.fixture(scope="module", params=sorted(SHAPES))
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """Every schedule in both formats, run by one group of processes; a rank's gradients are in name-format-rank.npz."""
    ranks: int = request.param
    directory = tmp_path_factory.mktemp("torch")
    jobs = []
    for name in NAMES:
        placement = FAMILIES[name].stage_to_rank(ranks)
        memory = float(2 * ranks + SHAPES[ranks])
        problem = uniform(ranks, SHAPES[ranks], memory=memory, delay_s=0.3, stage_to_rank=placement)
        schedule = generate(name, problem)
        if name == "crosspipe-greedy":  # sub-blocks are merged for torch: they must be among what is tested
            assert any(action.part != WHOLE for _, action in schedule.actions())
        for file_format in FORMATS:
            job = f"{name}-{file_format}"
            (directory / f"{job}.csv").write_text(to_csv(schedule, form_of(file_format)))
            jobs.append({"name": job, "format": file_format, "stages": placement})
    (directory / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(Path(__file__).with_name("torch_runtime_worker.py")), str(ranks), str(directory)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # in a session of their own, to end with all ranks
    workers = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        workers.wait(DEADLINE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(workers.pid, signal.SIGKILL)
        workers.wait(10)
    return ranks, directory


@pytest.fixture(scope="module")
def references() -> dict[int, dict[str, np.ndarray]]:
    corpus = load_corpus()
    return {
        ranks: {
            name: gradient.numpy() for name, gradient in train_reference(workload(ranks), corpus, 1).gradients.items()
        }
        for ranks in SHAPES
    }


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_torchs_runtime(
    results: tuple[int, Path], references: dict[int, dict[str, np.ndarray]], name: str, file_format: str
) -> None:
    ranks, directory = results
    gradients: dict[str, np.ndarray] = {}
    for rank in range(ranks):
        file = directory / f"{name}-{file_format}-{rank}.npz"
        assert file.exists(), f"rank {rank} did not get so far:\n{(directory / f'{rank}.log').read_text()[-2000:]}"
        with np.load(file) as saved:
            gradients |= dict(saved)
    expected = references[ranks]
    assert gradients.keys() == expected.keys()
    for parameter, gradient in gradients.items():
        worst = float(np.abs(gradient - expected[parameter]).max())
        assert worst <= TOLERANCE, f"{parameter} differs by {worst:.1e}"
