"""Cells of a study measured on a Ray cluster: a guest in every slot, and what it measured brought home.

Ray (https://www.ray.io) hands batches to whatever node has a processor free, and to another one when a node is lost.
"""

from __future__ import annotations

import io
import logging
import sys
import tarfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed import extras, source
from testbed.errors import BadInput
from testbed.planning import file
from testbed.study import ray_task
from testbed.study.cell_runs import WORKER, Batches, empty, limit_s, why_ended

_LOST_NODES = 5
"""So many times is a batch handed out anew whose node was lost."""
_WAIT_S = 1.0


def measure(address: str, base: Path, batches: Batches, *, shaper: str) -> None:
    """Measure batches of cells on the cluster at this address ("auto": the one that this machine belongs to).

    Its nodes need what testbed[train] needs, and the kernel of the virtual clock; our code comes along. Raises
    MachineLacks without Ray, BadInput for an address where none answers.
    """
    extras.require("ray")
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput.of("--ray", "option", address, f"the address of a Ray cluster ({error})") from error
    try:
        with redirect_stdout(sys.stderr):  # it tells there of nodes that are lost; our stdout is the result
            _measure(ray, base, batches, shaper)
    finally:
        ray.shutdown()


def _measure(ray: Any, base: Path, batches: Batches, shaper: str) -> None:
    with TemporaryDirectory(prefix="testbed-study-") as scratch:
        package = ray.put(_archive(source.freeze(Path(scratch))))
    ray.cloudpickle.register_pickle_by_value(ray_task)  # nodes need no version of ours
    task = ray.remote(num_cpus=1, max_retries=_LOST_NODES)(ray_task.measure)
    running: dict[Any, Sequence[str]] = {}
    while True:
        # one more than there are slots: none waits for its next batch
        while len(running) <= ray.cluster_resources().get("CPU", 0) and (names := batches.following()) is not None:
            plans = {name: (base / name / file.NAME).read_text(encoding="utf-8") for name in names}
            running[task.remote(plans, package, WORKER, shaper, limit_s(len(names)))] = names
        if not running:
            return
        for done in ray.wait(list(running), timeout=_WAIT_S)[0]:
            names, why = running.pop(done), ""
            try:
                archive, code, said = ray.get(done)
                _unpack(archive, names, base)
                why = why_ended(code, said)  # of a node that lacks something; the next try may be on another one
            except ray.exceptions.RayError as error:
                why = str(error)
            batches.ended(names, why)


def _archive(directory: Path) -> bytes:
    """A directory as a tar file, under its name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        archive.add(directory, directory.name)
    return packed.getvalue()


def _unpack(packed: bytes, names: Sequence[str], base: Path) -> None:
    """Lay the files of these cells into their directories, and nothing anywhere else."""
    for name in names:
        empty(base / name)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        wanted = [member for member in archive.getmembers() if Path(member.name).parts[0] in names]
        archive.extractall(base, members=wanted, filter="data")
