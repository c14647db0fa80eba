"""The ranks of test_torch_runtime.py: load CSV schedules into torch's own runtime and save the gradients they give.

Arguments: number of ranks, directory with jobs.json (a list of {name, format, stages, microbatches}) and the CSV files.
What is imported takes seconds: it is once, by the process of which the ranks are forks. Who fails ends them all, with
its words in RANK.log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from test_torch_runtime import workload  # the parent's: one definition of the job
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from testbed.train.data import load_corpus
from testbed.train.gpt_layers import next_byte_loss
from testbed.train.model_protocol import build_layers
from testbed.train.split import GradientStore


def run(job: dict[str, Any], rank: int, directory: Path) -> dict[str, np.ndarray]:
    spec = workload(job["microbatches"])
    placement = list(job["stages"])
    corpus, n_stages = load_corpus(), len(placement)
    batches = [
        corpus.batch(spec.seed, 0, m, spec.microbatch_size, spec.model.sequence)  # type: ignore[attr-defined]  # of the GPT
        for m in range(spec.microbatches)
    ]
    inputs, targets = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    mine = [stage for stage in range(n_stages) if placement[stage] == rank]

    def layers_of(stage: int) -> nn.ModuleList:
        # a store that collects nothing: torch splits the backward itself, by autograd.grad
        return build_layers(spec.model, spec.model.stage_layers(stage, n_stages), spec.seed, GradientStore())

    modules = {s: nn.Sequential(*layers_of(s)) for s in mine}
    stages = [PipelineStage(modules[s], s, n_stages, torch.device("cpu")) for s in mine]
    runtime = _PipelineScheduleRuntime(stages, spec.microbatches, loss_fn=next_byte_loss)  # type: ignore[no-untyped-call]
    runtime._load_csv(str(directory / f"{job['name']}.csv"), format=job["format"])
    last: dict[str, Any] = {"target": targets, "losses": []} if n_stages - 1 in mine else {}
    runtime.step(*((inputs,) if 0 in mine else ()), **last)
    gradients = {}
    for stage, module in modules.items():
        first = spec.model.stage_layers(stage, n_stages).start
        for index, layer in enumerate(module):
            for name, parameter in layer.named_parameters():
                gradients[f"{first + index}.{name}"] = parameter.grad.numpy()  # type: ignore[union-attr]
    return gradients


def rank_of(rank: int, ranks: int, directory: Path) -> None:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'store'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    for job in json.loads((directory / "jobs.json").read_text()):
        np.savez(directory / f"{job['name']}-{rank}.npz", **run(job, rank, directory))  # type: ignore[arg-type]
        distributed.barrier()
    distributed.destroy_process_group()


def forked(rank: int, ranks: int, directory: Path) -> NoReturn:
    """Be one of them, in a process that is its own."""
    code = 1
    try:
        with (directory / f"{rank}.log").open("w") as log:
            os.dup2(log.fileno(), 2)
        rank_of(rank, ranks, directory)
        code = 0
    except Exception:  # noqa: BLE001 - the top of a process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    ranks, directory = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    running = set()
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            forked(rank, ranks, directory)
        running.add(pid)
    failed = False
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status and not failed:  # the others would wait for it until gloo's own timeout
            failed = True
            for other in running:
                os.kill(other, signal.SIGKILL)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
