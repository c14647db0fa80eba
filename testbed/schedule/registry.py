"""Every schedule by name: how it places stages on ranks, and the function that generates it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import validate
from testbed.schedule.dualpipe_v import dualpipe_v
from testbed.schedule.geopipe import geopipe
from testbed.schedule.gpipe import gpipe
from testbed.schedule.greedy import crosspipe_greedy
from testbed.schedule.interleaved import interleaved_1f1b
from testbed.schedule.looped_bfs import looped_bfs
from testbed.schedule.one_f_one_b import one_f_one_b
from testbed.schedule.optimal import Solution, crosspipe_loop, crosspipe_ud, crosspipe_wave
from testbed.schedule.proof import Proof, Watch
from testbed.schedule.search import search
from testbed.schedule.wave_greedy import wave_greedy
from testbed.schedule.zb1p import zb1p
from testbed.schedule.zb_h1 import zb_h1
from testbed.schedule.zb_h2 import zb_h2
from testbed.schedule.zb_v import zb_v


class Generated(NamedTuple):
    """A schedule, and what is proven of it."""

    schedule: Schedule
    proof: Proof | None
    """A solver's; None from any other generator."""


class Family(NamedTuple):
    """A way to schedule."""

    generate: Callable[..., Schedule | Solution]
    """(problem, **options) -> Schedule; of a solver (problem, progress=None, **options) -> Solution"""
    summary: str
    placement: Placement = Placement.UD
    solver: bool = False
    """Takes its whole time limit: left out of `best` unless the workload lists it."""

    def option_names(self) -> list[str]:
        """Options the generator takes beside the problem."""
        return [name for name in list(inspect.signature(self.generate).parameters)[1:] if name != "progress"]


FAMILIES: dict[str, Family] = {
    "gpipe": Family(gpipe, "all forwards, then all backwards"),
    "1f1b": Family(one_f_one_b, "one forward, one backward"),
    "zb-h1": Family(zb_h1, "1F1B with split backward, weight gradients fill the drain"),
    "zb-h2": Family(zb_h2, "ZB-H1 with twice the warm-up and nearly twice the memory"),
    "geopipe": Family(geopipe, "1F1B with extra warm-up forwards before every wide-area cut"),
    "interleaved-1f1b": Family(interleaved_1f1b, "1F1B with two chunks per rank", Placement.LOOP),
    "looped-bfs": Family(looped_bfs, "GPipe with two chunks per rank", Placement.LOOP),
    "zb1p": Family(zb1p, "interleaved 1F1B with split backward", Placement.LOOP),
    "zb-v": Family(zb_v, "zero bubble in a V of two chunks per rank, at 1F1B's memory", Placement.WAVE),
    "dualpipe-v": Family(dualpipe_v, "DualPipe in a V of two chunks per rank", Placement.WAVE),
    "crosspipe-greedy": Family(crosspipe_greedy, "CrossPipe's greedy CrossUDSub, made for the links at hand"),
    "wave-greedy": Family(wave_greedy, "ours: a greedy in a V of two chunks per rank", Placement.WAVE),
    "search": Family(search, "ours: the greedy steered by an evolution strategy, judged by the event model"),
    "crosspipe-ud": Family(crosspipe_ud, "the solver's optimum, one stage per rank", solver=True),
    "crosspipe-wave": Family(crosspipe_wave, "the solver's optimum in a V", Placement.WAVE, solver=True),
    "crosspipe-loop": Family(crosspipe_loop, "the solver's optimum in a loop", Placement.LOOP, solver=True),
}


def family(name: str) -> Family:
    """The family of that name. Raises BadInput naming the known ones."""
    if name not in FAMILIES:
        raise BadInput.of("schedule", "name", name, f"one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def generate(name: str, problem: Problem, **options: Any) -> Schedule:
    """The schedule `name` for a problem, validated. Raises as `generate_proven`."""
    return generate_proven(name, problem, **options).schedule


def generate_proven(name: str, problem: Problem, *, watch: Watch | None = None, **options: Any) -> Generated:
    """The schedule `name` for a problem, validated, with what its solver proved; `watch` is told while that works.

    Raises BadInput for an unknown name or option, or InvalidSchedule when the schedule does not fit in memory.
    """
    chosen = family(name)
    for option in options:
        if option not in chosen.option_names():
            known = ", ".join(chosen.option_names()) or "no options"
            raise BadInput.of(f"schedule {name}", "option", option, known)
    if chosen.solver and watch is not None:
        options["progress"] = partial(watch, name)
    made = chosen.generate(problem, **options)
    generated = Generated(made, None) if isinstance(made, Schedule) else Generated(made.schedule, made.proof)
    validate(generated.schedule, problem)
    return generated
