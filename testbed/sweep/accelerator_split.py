"""How a job's accelerators are split over its parallel axes, and the job with as many accelerators split otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.plan.routes import datacenter_of
from testbed.planning.node_assignment import place
from testbed.spec.document import validate
from testbed.spec.quantity import SI_UNITS
from testbed.spec.slot_spread import SlotSpread
from testbed.spec.topology import Topology
from testbed.spec.workload import PacedKind, Pacing, Workload
from testbed.sweep.axes import Axis
from testbed.sweep.reshape import with_limits


class Split(NamedTuple):
    """Degrees of the parallel axes, and the axis that crosses datacenters."""

    pipeline: int
    tensor: int
    data: int
    across: Axis = "pipeline"
    """pipeline: every pipeline lies over all datacenters; data: each datacenter has whole pipelines."""

    @property
    def accelerators(self) -> int:
        """Of all three axes; of a workload without full scale its ranks."""
        return self.pipeline * self.tensor * self.data

    def __str__(self) -> str:
        degrees = f"{self.pipeline}x{self.tensor}x{self.data}"
        return degrees if self.across == "pipeline" else f"{degrees}/data"


def split_of(workload: Workload) -> Split:
    """The workload's own, at full scale where it has one. A placement of its own counts as the pipeline's."""
    degrees, full = workload.parallelism, workload.full_scale
    if full is None:
        return Split(degrees.pipeline, degrees.tensor, degrees.data)
    return Split(degrees.pipeline, full.tensor, full.data)


def parse(text: str, given: Split) -> Split:
    """What `--axes` says, as "8x8x1" or "4x8x2/data". Raises BadInput, also for another number of accelerators."""
    found = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})x([1-9]\d{0,5})(/data|/pipeline)?", text)
    expected = f"PIPELINExTENSORxDATA with a product of {given.accelerators}, as {given}; /data behind it where whole "
    expected += "pipelines are in each datacenter"
    if found is None:
        raise BadInput.of("--axes", "option", text, expected)
    pipeline, tensor, data = (int(found[group]) for group in (1, 2, 3))
    split = Split(pipeline, tensor, data, "data" if found[4] == "/data" else "pipeline")
    if split.accelerators != given.accelerators:
        raise BadInput.of("--axes", "option", f"{text} ({split.accelerators} accelerators)", expected)
    return split


def splits_around(topology: Topology, workload: Workload) -> list[Split]:
    """The workload's own and those beside it: pipelines half and twice as long, tensor parallelism halved, data
    parallelism with the rest, and either axis across datacenters where the job is in several.

    Tensor parallelism beyond the given degree is not tried: what it costs more is not in the model.
    """
    given = split_of(workload)
    pipelines = dict.fromkeys([given.pipeline, given.pipeline // 2, 2 * given.pipeline])
    tensors = dict.fromkeys([given.tensor, given.tensor // 2])
    sites = len(_sites(topology, workload))
    found = [given]
    for pipeline, tensor in product(pipelines, tensors):
        degrees = pipeline * tensor
        if degrees and given.accelerators % degrees == 0:
            data = given.accelerators // degrees
            found.append(Split(pipeline, tensor, data))
            if sites > 1 and data % sites == 0:
                found.append(Split(pipeline, tensor, data, "data"))
    return list(dict.fromkeys(found))


def _sites(topology: Topology, workload: Workload) -> list[str]:
    """The datacenters that the job is in, in their order. Raises BadInput where it has no room."""
    nodes = [node for pipeline in place(topology, workload) for node in pipeline]
    return list(dict.fromkeys(map(datacenter_of, nodes)))


# --- the job split otherwise ---------------------------------------------------------------------


def resplit(topology: Topology, workload: Workload, split: Split) -> Workload:
    """The workload on as many accelerators split so. Raises BadInput where that cannot be.

    Slots are shared by more or fewer ranks, FLOP give them at full scale; microbatches stay what they are, so that more
    pipelines have fewer of them. Memory limits count microbatches, of which a rank with fewer layers holds more.
    """
    given = split_of(workload)
    if split == given:
        return workload
    share = given.pipeline * given.tensor / (split.pipeline * split.tensor)
    document: dict[str, Any] = {
        "placement": "contiguous",
        "schedules": with_limits(workload.schedules, 1 / share),
        "memory": _limit(workload, share),
        "model": _deeper(workload, split.pipeline),
        **(_at_full_scale if workload.full_scale is not None else _in_the_lab)(topology, workload, split, share),
    }
    exchange = workload.data_parallel.model_copy(update={"replicas": None, **document.pop("exchange", {})})
    changed = workload.model_copy(update={**document, "data_parallel": exchange})
    if split.across == "data":
        changed = _a_pipeline_in_each(topology, workload, changed, split)
    made = _checked(changed)
    _require_accelerators(topology, workload, made, split)
    return made


def _checked(workload: Workload) -> Workload:
    """The same, as strictly read as a file. Raises BadInput."""
    document = workload.model_dump(exclude_none=True)
    document["schedules"] = [choice.as_document() for choice in workload.schedules]
    if workload.pacing is None:
        document["pacing"] = "none"
    return validate(Workload, document, workload.name, SI_UNITS)


def _limit(workload: Workload, share: float) -> float | None:
    """Microbatches in flight on a rank with so many times the layers. Raises BadInput for none."""
    if workload.memory is None:
        return None
    limit = min(workload.memory_limits()) / share
    if limit < 1:
        expected = f"room for one: a rank has {share:g} times the layers"
        raise BadInput.of(workload.name, "memory", f"{limit:g} microbatches in flight", expected)
    return limit


def _deeper(workload: Workload, pipeline: int) -> Any:
    """The model; at full scale the lab's stand-in for it, with as many layers per rank."""
    if workload.full_scale is None:
        return workload.model
    layers = max(pipeline, workload.model.layers * pipeline // workload.parallelism.pipeline)
    return workload.model.model_copy(update={"layers": layers})


def _at_full_scale(topology: Topology, workload: Workload, split: Split, _: float) -> dict[str, Any]:
    full, degrees = workload.full_scale, workload.parallelism
    assert full is not None
    nodes = sum(site.nodes for site in topology.datacenters.values())
    folded = degrees.data if split.data % degrees.data == 0 and split.pipeline * degrees.data <= nodes else 1
    return {
        "full_scale": full.model_copy(update={"tensor": split.tensor, "data": split.data}),
        "parallelism": degrees.model_copy(update={"pipeline": split.pipeline, "data": folded}),
    }


def _in_the_lab(_: Topology, workload: Workload, split: Split, share: float) -> dict[str, Any]:
    given, exchange = workload.parallelism, workload.data_parallel
    whole = workload.microbatches * given.data
    if whole % split.data:
        expected = f"a divisor of the {whole} microbatches of an iteration"
        raise BadInput.of(workload.name, "parallelism.data", split.data, expected)
    pacing = workload.pacing
    if pacing is not None and pacing.factors is not None:
        expected = "none: they are of ranks, and another split has other ones"
        raise BadInput.of(workload.name, "pacing.factors", pacing.factors, expected)
    degrees = {"pipeline": split.pipeline, "tensor": split.tensor, "data": split.data}
    return {
        "parallelism": given.model_copy(update=degrees),
        "microbatches": whole // split.data,
        "pacing": pacing and _slots(pacing, given.pipeline, split.pipeline, given.tensor / split.tensor),
        "exchange": {} if exchange.parameters is None else {"parameters": exchange.parameters * share},
    }


def _slots(pacing: Pacing, before: int, after: int, factor: float) -> Pacing:
    """Slots of so many ranks: each has the time of its part of the layers, which are spread evenly, times a factor.

    A distribution keeps its spread as a share of the median.
    """

    def of(kind: PacedKind) -> list[float] | SlotSpread:
        every = [pacing.of(kind, rank) for rank in range(before)]
        ends = [rank * before / after for rank in range(after + 1)]
        medians = [
            factor * sum(slot * max(0.0, min(end, n + 1) - max(begin, n)) for n, slot in enumerate(every))
            for begin, end in pairwise(ends)
        ]
        spread = pacing.spread(kind)
        return medians if spread is None else spread.about(medians)

    return Pacing.model_construct(F=of("F"), I=of("I"), W=of("W"), B=None if pacing.B is None else of("B"))


def _a_pipeline_in_each(topology: Topology, given: Workload, changed: Workload, split: Split) -> Workload:
    """With as many pipelines in each of the given job's datacenters. Raises BadInput where that cannot be."""
    sites = _sites(topology, given)
    if split.data % len(sites):
        expected = f"a multiple of {len(sites)}, the datacenters of the job: each has as many whole pipelines"
        raise BadInput.of(given.name, "data", split.data, expected)
    at_full_scale = given.full_scale is not None
    pipelines = len(sites) if at_full_scale else split.data
    degrees = changed.parallelism.model_copy(update={"data": pipelines})
    of_one = degrees.pipeline * degrees.tensor
    found: list[list[str]] = []
    for number in range(pipelines):
        site, first = sites[number % len(sites)], number // len(sites) * of_one
        nodes = topology.datacenters[site].nodes
        if first + of_one > nodes:
            expected = f"a datacenter {site} with {first + of_one} nodes, for whole pipelines in it"
            raise BadInput.of(topology.name, f"datacenters.{site}.nodes", nodes, expected)
        found.append([f"{site}/{node}" for node in range(first, first + of_one)])
    exchange = changed.data_parallel.model_copy(update={"replicas": found[1:]})
    return changed.model_copy(update={"parallelism": degrees, "placement": found[0], "data_parallel": exchange})


def _of_a_node(workload: Workload) -> float:
    """Accelerators that one node of the lab stands for: those of a rank, in all pipelines that share links."""
    full = workload.full_scale
    return 1.0 if full is None else full.tensor * full.data / workload.parallelism.data


def _require_accelerators(topology: Topology, given: Workload, made: Workload, split: Split) -> None:
    """Raises BadInput where a datacenter would need more accelerators than its nodes have under the given split."""
    there, needed = _of_a_node(given), _of_a_node(made)
    pipelines: Sequence[Sequence[str]] = place(topology, made)
    ranks = [datacenter_of(node) for pipeline in pipelines for node in pipeline]
    for name, site in topology.datacenters.items():
        wanted, room = ranks.count(name) * needed, site.nodes * there
        if wanted > room:
            expected = f"at most the {room:g} accelerators of {name} ({site.nodes} nodes of {there:g})"
            raise BadInput.of(given.name, f"axes {split}", f"{wanted:g} accelerators in {name}", expected)
