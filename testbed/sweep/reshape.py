"""A job in microbatches of another shape, with as many tokens in an iteration: slots, messages and memory follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.plan import counts
from testbed.spec.choice import ScheduleChoice
from testbed.spec.document import validate
from testbed.spec.workload import MAX_MICROBATCHES, MOST_MESSAGE_BYTES, PacedKind, Pacing, Workload
from testbed.units import show_size


class Shape(NamedTuple):
    """What a microbatch is."""

    microbatch_size: int
    sequence: int

    @property
    def tokens(self) -> int:
        """Of one microbatch."""
        return self.microbatch_size * self.sequence


def shape_of(workload: Workload) -> Shape:
    """The microbatch of a workload, at full scale where it has one. Raises BadInput where tokens are not known."""
    if workload.full_scale is not None:
        return Shape(workload.full_scale.microbatch_size, workload.full_scale.sequence)
    sequence = getattr(workload.model, "sequence", None)
    if not isinstance(sequence, int):
        raise BadInput.of(workload.name, "model.sequence", "none", "a model with a sequence length, such as gpt")
    return Shape(workload.microbatch_size, sequence)


def microbatches_of(workload: Workload) -> int:
    """Of every pipeline in an iteration."""
    return workload.microbatches if workload.full_scale is None else workload.full_scale.microbatches


def impossible(workload: Workload, shape: Shape) -> str | None:
    """Why the tokens of an iteration cannot come in such microbatches; None where they can."""
    given = shape_of(workload)
    tokens = microbatches_of(workload) * given.tokens
    if tokens % shape.tokens:
        return f"{tokens} tokens are no whole number of microbatches"
    if tokens // shape.tokens > MAX_MICROBATCHES:
        return f"more than {MAX_MICROBATCHES} microbatches"
    if workload.full_scale is not None:
        return None  # the lab's messages stay as they are, and HBM decides
    size = workload.message_bytes() * shape.tokens / given.tokens
    if size > MOST_MESSAGE_BYTES:
        return f"messages of {show_size(size)}"
    limit = min(workload.memory_limits()) * given.tokens / shape.tokens
    return None if limit >= 1 else "no room in memory for one microbatch"


def reshaped(
    workload: Workload, shape: Shape, fixed_s: float = 0.0, schedules: Sequence[ScheduleChoice] | None = None
) -> Workload:
    """The workload with microbatches of another shape and as many tokens, and with these schedules or its own.

    Slots grow as FLOP do, messages and activations as tokens, so memory limits, which count microbatches, shrink; also
    those of its own schedules. At full scale all of that follows; a workload that does not say `memory` there has all
    that HBM holds. `fixed_s` is the part of every slot that does not depend on its microbatch.
    """
    if schedules is None:
        schedules = with_limits(workload.schedules, shape_of(workload).tokens / shape.tokens)
    if workload.full_scale is not None:
        return _reshaped_at_full_scale(workload, shape, fixed_s, schedules)
    given = shape_of(workload)
    tokens = shape.tokens / given.tokens
    document: dict[str, Any] = workload.model_dump(exclude_none=True)
    document |= {
        "microbatches": round(workload.microbatches / tokens),
        "microbatch_size": shape.microbatch_size,
        "model": {**document["model"], "sequence": shape.sequence},
        "memory": [limit / tokens for limit in workload.memory_limits()],
        "schedules": [choice.as_document() for choice in schedules],
    }
    if workload.message is not None:
        document["message"] = workload.message * tokens
    if workload.pacing is not None:
        document["pacing"] = _slots(workload, workload.pacing, shape, fixed_s)
    return validate(Workload, document, workload.name, "numbers are SI units")


def with_limits(choices: Sequence[ScheduleChoice], factor: float) -> list[ScheduleChoice]:
    """The choices with so many times the memory limit, where they have one of their own."""
    return [
        choice if choice.memory is None else choice.model_copy(update={"memory": choice.memory * factor})
        for choice in choices
    ]


def _reshaped_at_full_scale(
    workload: Workload, shape: Shape, fixed_s: float, schedules: Sequence[ScheduleChoice]
) -> Workload:
    full = workload.full_scale
    assert full is not None
    if fixed_s:
        raise BadInput.of("--fixed", "option", f"{fixed_s:g} s", "0 beside full_scale, where FLOP give every slot")
    given = shape_of(workload)
    changed = {
        "microbatch_size": shape.microbatch_size,
        "sequence": shape.sequence,
        "global_batch": full.global_batch * given.sequence // shape.sequence,
    }
    limits = [limit * given.tokens / shape.tokens for limit in workload.memory_limits()]
    memory = None if workload.memory is None else limits
    return workload.model_copy(
        update={"full_scale": full.model_copy(update=changed), "memory": memory, "schedules": list(schedules)}
    )


def _slots(workload: Workload, pacing: Pacing, shape: Shape, fixed_s: float) -> dict[str, Any]:
    """Pacing of other microbatches: ranks keep their factors, distributions their spread as a share of the median."""
    given, ranks = shape_of(workload), range(workload.parallelism.pipeline)
    before, after = (flop_per_token(workload, shaped.sequence) for shaped in (given, shape))
    found: dict[str, Any] = {} if pacing.factors is None else {"factors": pacing.factors}
    kinds: tuple[PacedKind, ...] = ("F", "I", "W", *(("B",) if pacing.B is not None else ()))
    for kind in kinds:
        grown = after[kind] / before[kind] * shape.tokens / given.tokens
        slots = [pacing.of(kind, rank) for rank in ranks]
        if min(slots) < fixed_s:
            expected = f"at most the shortest slot of {kind} ({min(slots):g} s)"
            raise BadInput.of("--fixed", "option", f"{fixed_s:g} s", expected)
        medians = [fixed_s + (slot - fixed_s) * grown for slot in slots]
        spread = pacing.spread(kind)
        found[kind] = medians if spread is None else spread.about(medians).model_dump(exclude_none=True)
    return found


def flop_per_token(workload: Workload, sequence: int) -> dict[str, float]:
    """FLOP of one layer per token, by kind of action.

    Products 2 x (4 d^2 + 2 d d_ff) in F, I and W each. Causal attention on top, 2 s d in F and 5 s d in I, which
    recomputes it (Dao 2023, FlashAttention-2, section 4.1; the counts of CrossPipe, Appendix E). For a model that is no
    gpt: products alone, as the width is not known.
    """
    if workload.full_scale is not None:
        layer = counts.layer_flop(workload.full_scale.shape, 1, sequence)
        per_token = {"F": layer.forward / sequence, "I": layer.input / sequence, "W": layer.weight / sequence}
        return per_token | {"B": per_token["I"] + per_token["W"]}
    fields = workload.model.model_dump()
    width = fields.get("d_model")
    if not width:
        return dict.fromkeys("FIWB", 1.0)
    products = 8.0 * width**2 + 4.0 * width * (fields.get("d_ff") or 4 * width)
    scores = float(sequence * width)
    found = {"F": products + 2 * scores, "I": products + 5 * scores, "W": products}
    return found | {"B": found["I"] + found["W"]}


def efficiency_remark(workload: Workload) -> str | None:
    """What nobody can know of microbatches at full scale; None where slots are not made of FLOP."""
    full = workload.full_scale
    if full is None or not isinstance(full.accelerator.efficiency, float):
        return None
    return (
        f"the accelerator's efficiency is {full.accelerator.efficiency:g} for every microbatch here, so that a smaller "
        "one never costs more per token: the fastest microbatch is the smallest by assumption, not by measurement. "
        "full_scale.accelerator.efficiency can be a curve: a list of {tokens, share}"
    )
