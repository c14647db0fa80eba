"""What `testbed advise` prints: candidates, what does not fit, what would help, what was measured, and the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from testbed.cli import options
from testbed.cli.range_cells import show_ranges
from testbed.cli.table_layout import Column, Section, fitted
from testbed.cli.untrusted import why_untrusted
from testbed.grouping import grouped
from testbed.planning.ties import range_keys
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload
from testbed.sweep.accelerator_split import split_of
from testbed.sweep.advise import Advice, Grid
from testbed.sweep.elasticity import Elasticity
from testbed.sweep.reshape import efficiency_remark
from testbed.sweep.variant import Forecast, MemoryUse, Unfit, Variant, given_variant, tokens_of
from testbed.units import show_change, show_size, show_sizes, show_span, show_time, show_times

_MOST_ELASTICITIES = 8


class Answer(NamedTuple):
    """All that there is to say."""

    network: Topology
    workload: Workload
    grid: Grid
    advice: Advice
    top: int
    helping: Sequence[Elasticity]
    measured: Sequence[Mapping[str, Any]]
    """Entries of comparison.json, of as many of the best."""
    warnings: Sequence[str]

    @property
    def best(self) -> list[Forecast]:
        """Those that were asked for."""
        return self.advice.found.forecasts[: self.top]

    @property
    def at_full_scale(self) -> bool:
        """Whether times are those of full scale."""
        return self.workload.full_scale is not None

    @property
    def as_given(self) -> Forecast | None:
        """The best of the workload as it is; None where that was not predicted."""
        given = given_variant(self.workload)
        return next((one for one in self.advice.found.forecasts if one.variant == given), None)

    @property
    def not_asked(self) -> int:
        """Of how many rates and delays it is not known what they would help."""
        return 2 * len(self.network.links) + 1 - len(self.helping)

    def of_one_site(self, one: Forecast) -> float | None:
        """Its speed as a share of one datacenter's, by the most that either may take; None for one datacenter."""
        site = self.advice.one_site
        return None if site is None else site.worst_s / one.worst_s


def show_answer(answer: Answer) -> None:
    """On the terminal, the answer last."""
    console = options.stdout_console(100)
    options.show(
        console,
        *_unfit_parts(answer, console.width),
        *_remarks(answer),
        *_candidates(answer, console.width),
        *_legend(answer),
        *_helping(answer, console.width),
        *_measured(answer, console.width),
        *why_untrusted((_named(one), row) for one, row in zip(answer.best, answer.measured, strict=False)),
        *(Text(line, style="bold") for line in _sentences(answer)),
    )


# --- candidates ----------------------------------------------------------------------------------


def _named(one: Forecast) -> str:
    """Schedule, routes, and what of the variant has no column."""
    across = ", data across" if one.variant.split.across == "data" else ""
    return f"{one.name}{across}{'' if one.variant.memory is None else f', {one.variant.memory}'}"


def _degrees(variant: Variant) -> str:
    return str(variant.split).removesuffix("/data")


def _candidates(answer: Answer, width: int) -> list[Table]:
    rows, full = answer.best, answer.workload.full_scale
    columns = [
        Column("\nPxTxD", [_degrees(one.variant) for one in rows]),
        Column("\nsize", [str(one.variant.microbatch_size) for one in rows]),
        Column("\ntime", show_ranges([one.seconds for one in rows], [one.predicted_range for one in rows])),
        Column("ktoken\nper s", [_thousands(one.tokens_per_s) for one in rows]),
    ]
    if full is not None:
        columns.append(Column("\nMFU", ["-" if one.mfu is None else f"{one.mfu:.1%}" for one in rows]))
    columns.append(_held(rows))
    if answer.advice.one_site is not None:
        shares = [answer.of_one_site(one) for one in rows]
        columns.append(Column("one\nDC", ["-" if share is None else f"{share:.0%}" for share in shares]))
    what = "accelerators, at full scale" if full else "ranks, in the lab"
    title = f"{answer.workload.name} on {answer.network.name}: {split_of(answer.workload).accelerators} {what}"
    return fitted(Column("\nschedule", [_named(one) for one in rows], left=True), [Section(title, columns)], width)


def _held(rows: Sequence[Forecast]) -> Column:
    if all(one.held.in_bytes for one in rows):
        return Column("\nHBM", [f"{one.held.share:.0%}" for one in rows])
    return Column("in\nflight", [f"{one.held.used:.4g}/{one.held.limit:.4g}" for one in rows])


def _thousands(value: float | None) -> str:
    if value is None:
        return "-"
    decimals = max(0, 3 - math.floor(math.log10(value / 1e3))) if value > 0 else 0
    return f"{value / 1e3:.{decimals}f}"


def _legend(answer: Answer) -> Iterator[str]:
    """What the columns mean."""
    said = "PxTxD: pipeline x tensor x data parallelism; size: samples in a microbatch"
    if all(one.held.in_bytes for one in answer.best):
        said += f"; HBM: of {_hbm(answer.best)}"
    if answer.advice.one_site is not None:
        said += "; one DC: speed, as a share of the fastest in one datacenter"
    yield said
    if any(one.variant.split.across == "data" for one in answer.best):
        yield "data across: whole pipelines in each datacenter, which exchange gradients"
    yield _counted(answer)


def _remarks(answer: Answer) -> Iterator[str]:
    """What is taken for granted."""
    yield from options.warnings(answer.warnings)
    if len(answer.grid.sizes) > 1 and (remark := efficiency_remark(answer.workload)) is not None:
        yield f"* {remark}"
    if len(answer.grid.splits) > 1:
        taken = "slots were shared by more or fewer ranks without loss"
        if answer.at_full_scale:
            taken = "tensor parallelism cost nothing more, and gradients inside a datacenter were exchanged for nothing"
        yield f"* other axes are predicted as if {taken}: one that is a little faster may not be"
    found = answer.advice.found
    used = {one.policy for one in found.forecasts} | {one.policy for one in found.unfit}
    if same := [policy.label for policy in answer.grid.policies if policy is not None and policy.label not in used]:
        yield f"* {', '.join(same)}: the same routes as default ones, or as those of a policy before"


def _hbm(rows: Sequence[Forecast]) -> str:
    return " or ".join(dict.fromkeys(show_size(one.held.limit) for one in rows))


def _counted(answer: Answer) -> str:
    found = answer.advice.found
    variants, predicted = len(answer.grid.variants()), len({one.variant for one in found.forecasts})
    cannot = variants - predicted - len(found.beaten) - len(found.untried)
    parts = [f"{_number(variants, 'variant')} x {_number(len(answer.grid.schedules), 'schedule')}"]
    parts[0] += f": {_number(predicted, 'variant')} predicted"
    if found.beaten:
        among = "the best" if answer.top == 1 else f"among the {answer.top} best"
        parts.append(f"{len(found.beaten)} cannot be {among} (lower bound)")
    if cannot:
        parts.append(f"{cannot} cannot be")
    if found.untried:
        names = ", ".join(str(one.variant) for one in found.untried[:3])
        parts.append(f"{len(found.untried)} NOT TRIED for want of time, --limit gives more ({names} ...)")
    return "; ".join(parts)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


# --- what does not fit ---------------------------------------------------------------------------


def _unfit_parts(answer: Answer, width: int) -> list[RenderableType]:
    """A table of what memory keeps out, a row per variant; and a line for everything else that cannot be."""
    unfit = answer.advice.found.unfit
    rows = list(grouped((each.variant, each) for each in unfit if each.over_memory).items())
    parts: list[RenderableType] = []
    if rows:
        known = [[unit.held for unit in each if unit.held is not None] for _, each in rows]
        only_in_flight = not any(held.in_bytes for each in known for held in each)  # where HBM has room for more
        columns = [
            Column("\nsize", [str(variant.microbatch_size) for variant, _ in rows]),
            Column("\nneeds", [_needs(each) for each in known]),
            Column("there\nis", [_amount(each[0].limit, each[0].in_bytes) if each else "less" for each in known]),
            Column("\nschedules", [_schedules(answer, each) for _, each in rows], left=True, wrapped=True),
        ]
        key = Column("\nPxTxD", [_key(variant) for variant, _ in rows], left=True)
        title = f"does not fit into memory{' (microbatches in flight)' if only_in_flight else ''}"
        parts += fitted(key, [Section(title, columns)], width)
    others = grouped((_why(answer, each), each) for each in unfit if not each.over_memory)
    parts += [f"cannot be: {_whose(each)}: {why}" for why, each in others.items()]
    return parts


def _key(variant: Variant) -> str:
    across = ", data across" if variant.split.across == "data" else ""
    return f"{_degrees(variant)}{across}{'' if variant.memory is None else f', {variant.memory}'}"


def _amount(value: float, in_bytes: bool) -> str:
    return show_size(value) if in_bytes else f"{value:.4g}"


def _needs(held: Sequence[MemoryUse]) -> str:
    """Of several schedules from least to most; of one that would hold more where there is more, only that."""
    if not held:
        return "more"
    values, in_bytes = [each.used for each in held], held[0].in_bytes
    least, most = min(values), max(values)
    low, high = show_sizes([least, most]) if in_bytes else (_amount(value, in_bytes) for value in (least, most))
    return show_span(low, high)


def _schedules(answer: Answer, unfit: Sequence[Unfit]) -> str:
    """Their names, or those of the others where these are fewer."""
    names = [each.schedule for each in unfit if each.schedule is not None]
    every = [choice.label for choice in answer.grid.schedules]
    others = [name for name in every if name not in names]
    if not names or not others:
        return f"all {len(every)}"
    return f"all but {', '.join(others)}" if len(others) < len(names) else ", ".join(names)


def _why(answer: Answer, unfit: Unfit) -> str:
    """The reason, alike for as many variants as can be."""
    return unfit.reason.removeprefix(f"{answer.workload.name}: ")


def _whose(unfit: Sequence[Unfit]) -> str:
    by_split = grouped((str(each.variant.split), each.variant.microbatch_size) for each in unfit)
    named = [f"{split}, size {', '.join(map(str, dict.fromkeys(sizes)))}" for split, sizes in by_split.items()]
    schedules = dict.fromkeys(each.schedule for each in unfit if each.schedule is not None)
    policies = dict.fromkeys(f"any on {each.policy}" for each in unfit if each.policy is not None)
    with_them = [*schedules, *policies]
    return "; ".join(named) + (f", with {' or '.join(with_them)}" if with_them else "")


# --- what would help, what was measured ----------------------------------------------------------


def _helping(answer: Answer, width: int) -> list[RenderableType]:
    some = [each for each in answer.helping if each.matters][:_MOST_ELASTICITIES]
    rest = len(answer.helping) - len(some)
    parts: list[RenderableType] = []
    if some:
        columns = [
            Column("d ln time /\nd ln of it", [f"{each.value:+.4f}" for each in some]),
            Column("\nchange", [show_change(each.factor - 1, 0) for each in some]),
            Column("\ntime", [show_change(-each.gain, 2) for each in some]),
        ]
        key = Column("\nof the best", [each.name for each in some], left=True)
        parts += fitted(key, [Section("what would help most", columns)], width)
    if rest:
        parts.append(f"not shown: {rest} of {len(answer.helping)}, which change less, or nothing")
    if answer.not_asked:
        said = f"{answer.not_asked} rates and delays, of links that --limit leaves out"
        parts.append(f"NOT ASKED for want of time: {said}")
    return parts


def _measured(answer: Answer, width: int) -> list[Table]:
    rows = list(zip(answer.best, answer.measured, strict=False))
    if not rows:
        return []
    of_rows = [row.get("full_scale") or row for _, row in rows]
    times = show_times([each[name] for each in of_rows for name in ("measured_s", "predicted_s")])
    columns = [
        Column("\nPxTxD", [_degrees(one.variant) for one, _ in rows]),
        Column("\nsize", [str(one.variant.microbatch_size) for one, _ in rows]),
        Column("\nmeasured", times[0::2]),
        Column("\npredicted", times[1::2]),
        Column("\noff by", [show_change(row["error"], 3) for _, row in rows]),
        Column("\ntrusted", ["yes" if row["trusted"] else "NO" for _, row in rows]),
    ]
    where = "at full scale, from the lab" if answer.at_full_scale else "in the lab"
    key = Column("\nschedule", [_named(one) for one, _ in rows], left=True)
    return fitted(key, [Section(f"trained on the virtual clock: {where}", columns)], width)


def _sentences(answer: Answer) -> Iterator[str]:
    best, site, given = answer.best[0], answer.advice.one_site, answer.as_given
    share, where = answer.of_one_site(best), "at full scale" if answer.at_full_scale else "in the lab"
    (time,) = show_ranges([best.seconds], [best.predicted_range])
    said = f"best: {best.name}, {best.variant}: {time} {where}"
    if site is not None and share is not None:
        said += f", {share:.1%} of one datacenter ({show_time(site.worst_s)}: {site.name}, {site.variant})"
    yield said
    if given is not None and given.variant != best.variant:
        yield (
            f"as given ({given.variant}): {given.name}, {show_time(given.worst_s)}, "
            f"{show_change(given.worst_s / best.worst_s - 1)}"
        )
    if answer.helping:
        first = answer.helping[0]
        nothing = "no link and no memory would help"
        if answer.not_asked:
            nothing = f"nothing of what was asked; {answer.not_asked} rates and delays were not (--limit)"
        said = first.sentence() if first.matters and first.helps > 0 else nothing
        yield f"what would help most: {said}"


# --- for machines --------------------------------------------------------------------------------


def document(answer: Answer) -> dict[str, Any]:
    """Seconds are those of full scale where the workload has one (`full_scale` says so), else of the lab."""
    found, grid, site = answer.advice.found, answer.grid, answer.advice.one_site
    candidates = [_entry(one) | {"of_one_datacenter": answer.of_one_site(one)} for one in answer.best]
    for entry, row in zip(candidates, answer.measured, strict=False):
        entry["measured"] = dict(row)
    return {
        "topology": answer.network.name,
        "workload": answer.workload.name,
        "warnings": list(answer.warnings),
        "full_scale": answer.at_full_scale,
        "accelerators": split_of(answer.workload).accelerators,
        "tokens": tokens_of(answer.workload),
        "tried": {
            "axes": list(map(str, grid.splits)),
            "microbatch_sizes": list(grid.sizes),
            "memory_limits": [limit and str(limit) for limit in grid.memories],
            "schedules": [choice.label for choice in grid.schedules],
            "policies": [policy and policy.label for policy in grid.policies],
        },
        "candidates": candidates,
        "one_datacenter": site and _entry(site),
        "as_given": answer.as_given and _entry(answer.as_given),
        "elasticities": [
            {"quantity": each.quantity, "link": each.link or None, "elasticity": each.value, "factor": each.factor}
            | {"before_s": each.before_s, "after_s": each.after_s, "sentence": each.sentence()}
            for each in answer.helping
        ],
        "does_not_fit": [
            _variant(each.variant)
            | {"schedule": each.schedule, "policy": each.policy, "reason": each.reason}
            | {"needs": each.held and each.held.used, "limit": each.held and each.held.limit}
            | {"in_bytes": each.held and each.held.in_bytes}
            for each in found.unfit
        ],
        "beaten": [_variant(one.variant) | {"bound_s": one.bound_s} for one in found.beaten],
        "not_tried": [_variant(one.variant) for one in found.untried],
    }


def _variant(variant: Variant) -> dict[str, Any]:
    split, memory = variant.split, variant.memory
    return {
        "pipeline": split.pipeline,
        "tensor": split.tensor,
        "data": split.data,
        "across": split.across,
        "microbatch_size": variant.microbatch_size,
        "memory_limit": memory and str(memory),
    }


def _entry(one: Forecast) -> dict[str, Any]:
    return {
        **_variant(one.variant),
        "schedule": one.choice.label,
        "policy": one.policy,
        "predicted_s": one.seconds,
        **range_keys(one.predicted_range),
        "tokens_per_s": one.tokens_per_s,
        "mfu": one.mfu,
        "held": one.held.used,
        "held_limit": one.held.limit,
        "held_in_bytes": one.held.in_bytes,
        "remarks": list(one.remarks),
    }
