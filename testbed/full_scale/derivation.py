"""How the lab's numbers follow from those of full scale, line by line, each with its formula and where that is from."""

from __future__ import annotations

from typing import NamedTuple

from testbed.full_scale import similitude
from testbed.full_scale.similitude import Scales
from testbed.plan import counts
from testbed.plan.network_state import planned
from testbed.plan.plan import Job, Plan
from testbed.spec.full_scale_job import SHAPE_SOURCES, FullScale
from testbed.spec.topology import Direction
from testbed.units import show_compute, show_rate, show_size, show_time


class Line(NamedTuple):
    """One quantity."""

    quantity: str
    value: str
    source: str
    """Formula, and paper and section."""


def derivation(plan: Plan, job: Job) -> list[Line]:
    """Of a job that stands for one at full scale; [] for any other."""
    at = similitude.scales(job.workload, plan.host_costs.gloo_bytes)
    full = job.workload.full_scale
    if at is None or full is None:
        return []
    ranks = job.mesh.pp
    slowest = max(range(ranks), key=lambda rank: counts.stage_flop(full, rank, ranks).forward)
    lines = [*_model(full, ranks), *_times(full, slowest, ranks), *_sizes(job, full)]
    lines += _memory(job, full)
    forward_s = counts.seconds(full, counts.stage_flop(full, slowest, ranks).forward)
    lines += _scales(job, at, forward_s)
    message = counts.message_bytes(full, job.mesh.dp)
    for link in dict.fromkeys(planned(plan.network).everything):
        lines.append(_direction(link, at, forward_s, message))
    return lines


def _model(full: FullScale, ranks: int) -> list[Line]:
    shape = full.shape
    name = full.model if isinstance(full.model, str) else "as given"
    source = SHAPE_SOURCES[full.model] if isinstance(full.model, str) else "the workload"
    words = f"{name}: d {shape.hidden}, {shape.layers} layers, {shape.heads} heads ({shape.key_heads} of keys), "
    words += f"MLP {shape.inner}{' gated' if shape.gated else ''}, vocabulary {shape.vocabulary}"
    parameters = counts.stage_parameters(full, 0, 1)
    shares = [counts.share(full, rank, ranks).layers for rank in range(ranks)]
    shown = f"{shares[0]} each" if len(set(shares)) == 1 else " ".join(map(str, shares))
    spread = "embedding and projection as a layer each" if full.ends_as_layers else "spread evenly"
    return [
        Line("model", words, source),
        Line("parameters", f"{parameters / 1e9:.4g}e9", "sum of all matrices, norms and biases of that shape"),
        Line("layers by rank", shown, f"{spread}; projection on the last rank"),
    ]


def _times(full: FullScale, rank: int, ranks: int) -> list[Line]:
    flop = counts.stage_flop(full, rank, ranks)
    seconds = [counts.seconds(full, counted) for counted in flop]
    accelerator = full.accelerator
    speed = f"{show_compute(accelerator.flops)} x {full.efficiency:g} x {full.tensor} accelerators"
    formulas = (
        "2 m k n a product; causal attention, FlashAttention-2 (Dao 2023, 4.1): 2 of its products forward",
        "gradients by input cost what the forward does; attention 5 products (Dao 2023, 4.1)",
        "gradients by weight: as the forward without attention's products",
    )
    lines = []
    for name, operations, taken, formula in zip(("F", "I", "W"), flop, seconds, formulas, strict=True):
        ratio = "" if name == "F" else f"; T_{name}/T_F {taken / seconds[0]:.4f}"
        what = f"{operations / 1e12:.5g} TFLOP -> T_{name} {show_time(taken)}{ratio}"
        lines.append(Line(f"{name} of rank {rank}", what, formula))
    where = "T = FLOP / (peak x efficiency x accelerators); CrossPipe (arXiv 2507.00217), Appendix E"
    return [*lines, Line("speed of a rank", speed, where)]


def _sizes(job: Job, full: FullScale) -> list[Line]:
    folded = full.data // job.mesh.dp
    aggregated = f" x {folded} pipelines that share links" if folded > 1 else ""
    lines = [
        Line(
            "microbatches",
            f"{full.microbatches} of {full.microbatch_size} x {full.sequence} tokens",
            f"{full.global_batch} samples / ({full.data} pipelines x {full.microbatch_size})",
        ),
        Line(
            "boundary message",
            show_size(counts.message_bytes(full, job.mesh.dp)),
            f"2 b s d{aggregated}; CrossPipe, section 7.1",
        ),
    ]
    if job.mesh.dp > 1:
        inside = f"; what {folded} pipelines add up before is left out" if folded > 1 else ""
        source = f"2 bytes a parameter of the largest rank, gathered and reduced; CrossPipe, Appendix E{inside}"
        lines.append(Line("exchanged by replicas", show_size(similitude.exchanged_bytes(job.workload)), source))
    return lines


def _memory(job: Job, full: FullScale) -> list[Line]:
    caps = counts.memory_caps(job.workload) or []
    rank = min(range(len(caps)), key=caps.__getitem__)
    held = counts.rank_bytes(full, rank, len(caps))
    return [
        Line(
            f"memory of rank {rank}",
            f"parameters {show_size(held.parameters)}, gradients {show_size(held.gradients)}, optimizer states "
            f"{show_size(held.optimizer)}, message buffers {show_size(held.buffers)}",
            "on each accelerator: 2, 2 and 12 bytes a parameter, ZeRO-1 (Rajbhandari et al. 2020, 3.1); room for 4 "
            "messages: assumed",
        ),
        Line(
            "activations",
            f"{show_size(held.activation)} for a microbatch in flight",
            "34 s b h a layer / accelerators (Korthikanti et al. 2022, Table 2), for an MLP of 4 h: taken for any",
        ),
        Line(
            "microbatches in HBM",
            f"{min(caps):.4g} of {show_size(full.accelerator.memory)} (rank {rank})",
            "(HBM - all else) / activations",
        ),
    ]


def _scales(job: Job, at: Scales, forward_s: float) -> list[Line]:
    workload = job.workload
    assert workload.lab is not None
    lines = [
        Line(
            "lab: time",
            f"{at.seconds:.6g} s a second: a slot of {show_time(workload.lab.slot)} for {show_time(forward_s)}",
            "the slowest rank's forward; every F, I and W by the same factor",
        ),
        Line(
            "lab: message",
            f"{show_size(workload.lab.message)}, on the wire {at.wire_bytes:.6g} B a byte",
            "headers and what gloo adds count in, so that T_bw/T_F is met",
        ),
    ]
    if job.mesh.dp > 1:
        parameters = show_size(workload.data_parallel.parameters or 0.0)
        lines.append(Line("lab: exchanged", parameters, "the same factor, less headers of its own"))
    return lines


def _direction(direction: Direction, at: Scales, forward_s: float, message: float) -> Line:
    full = similitude.full_scale_of(direction, at)
    wire_s = 8 * message / full.rate_bps
    ratios = f"T_lat/T_F {full.delay_s / forward_s:.4g}, T_bw/T_F {wire_s / forward_s:.4g}"
    here = f"{show_time(full.delay_s)}, {show_rate(full.rate_bps)}"
    there = f"lab {show_time(direction.delay_s)}, {show_rate(direction.rate_bps)}"
    return Line(
        f"link {direction.label}",
        f"{here}: {ratios}; {there}",
        "fibre 5 us/km; T_bw = message / rate; CrossPipe, Table 1",
    )
