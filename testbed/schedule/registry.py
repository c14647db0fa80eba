"""Schedules by name: built in, from installed packages, from FILE.py:NAME or a torch CSV; generated and validated."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from testbed.errors import BadInput, DoesNotFit
from testbed.model.simulate import makespan
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import require_room, validate
from testbed.plugins import Registry, Unusable, in_file, own_code
from testbed.schedule.family import Family, as_family
from testbed.search.incumbent import Watch
from testbed.search.proof import Proof
from testbed.spec.choice import ScheduleChoice

if TYPE_CHECKING:
    from testbed.schedule.optimal import Solution

T = TypeVar("T")

FAMILIES = Registry(
    "testbed.schedules",
    {
        "gpipe": "testbed.schedule.gpipe:FAMILY",
        "1f1b": "testbed.schedule.one_f_one_b:FAMILY",
        "zb-h1": "testbed.schedule.zb_h1:FAMILY",
        "zb-h2": "testbed.schedule.zb_h2:FAMILY",
        "geopipe": "testbed.schedule.geopipe:FAMILY",
        "pipemorph": "testbed.schedule.pipemorph:FAMILY",
        "interleaved-1f1b": "testbed.schedule.interleaved:FAMILY",
        "looped-bfs": "testbed.schedule.looped_bfs:FAMILY",
        "zb1p": "testbed.schedule.zb1p:FAMILY",
        "zb-v": "testbed.schedule.zb_v:FAMILY",
        "dualpipe-v": "testbed.schedule.dualpipe_v:FAMILY",
        "crosspipe-greedy": "testbed.schedule.greedy:FAMILY",
        "wave-greedy": "testbed.schedule.wave_greedy:FAMILY",
        "search": "testbed.schedule.search_families:FAMILY",
        "search-wave": "testbed.schedule.search_families:WAVE_FAMILY",
        "search-loop": "testbed.schedule.search_families:LOOP_FAMILY",
        "crosspipe-ud": "testbed.schedule.optimal:UD_FAMILY",
        "crosspipe-wave": "testbed.schedule.optimal:WAVE_FAMILY",
        "crosspipe-loop": "testbed.schedule.optimal:LOOP_FAMILY",
    },
    as_family,
)
"""Families by name. To add one: a module with its Family, and a line here (docs/extending.md)."""


class Generated(NamedTuple):
    """A schedule, and what is proven of it."""

    schedule: Schedule
    proof: Proof | None
    """A solver's; None from any other generator."""
    remarks: tuple[str, ...] = ()
    """What a user should know of it: what memory has cost it, or that it is the fastest of several."""


def family(name: str) -> Family:
    """The registered family of that name. Raises BadInput naming the known ones."""
    try:
        return family_of(ScheduleChoice(schedule=name))
    except Unusable as error:
        raise error.at("schedule", "name") from error


def family_of(choice: ScheduleChoice) -> Family:
    """The family that a choice names, by name or in a file. Raises Unusable, or BadInput naming a CSV's cell."""
    if choice.schedule.endswith(".csv"):
        return _from_csv(choice.schedule, choice.content)
    return FAMILIES.find(choice.schedule, choice.content)


@lru_cache(maxsize=16)
def _from_csv(file: str, content: str | None) -> Family:
    """The family of which the schedule in a torch CSV is the only member. Raises BadInput naming row and cell."""
    from testbed.pipeline.torch_csv import from_csv

    if content is None:
        raise Unusable(file, "what the file holds to be read first")
    schedule = from_csv(content, PurePath(file).stem)

    def generate(problem: Problem) -> Schedule:
        if problem.n_microbatches != schedule.n_microbatches:
            expected = f"one of {problem.n_microbatches}, as the workload has them"
            raise DoesNotFit.of(file, "microbatches", f"a schedule of {schedule.n_microbatches}", expected)
        return schedule

    return Family(generate, f"the schedule in {file}", schedule.stage_to_rank)


def check_choice(choice: ScheduleChoice, source: str, field: str) -> None:
    """Raises BadInput when there is no such schedule, or its options are not right; `field` is where it stands."""
    try:
        known = family_of(choice)
    except Unusable as error:
        raise error.at(source, f"{field}.schedule") from error
    known.options(choice.options(), choice.label, source, f"{field}.")


def generate(name: str, problem: Problem, **options: Any) -> Schedule:
    """The schedule `name` for a problem, validated. Raises as `generate_proven`."""
    return generate_proven(name, problem, **options).schedule


def generate_proven(name: str, problem: Problem, *, watch: Watch | None = None, **options: Any) -> Generated:
    """The schedule of a registered family. Raises as `generate_choice`."""
    return generate_choice(ScheduleChoice(schedule=name, **options), problem, watch)


def generate_choice(choice: ScheduleChoice, problem: Problem, watch: Watch | None = None) -> Generated:
    """The schedule of a choice under its label, validated, with what its solver proved; `watch` is told of that work.

    Raises BadInput for an unknown name or option, DoesNotFit where the problem has no room for such a schedule, or
    InvalidSchedule for one that nobody could run: its generator's mistake.
    """
    known = family_of(choice)
    options = known.options(choice.options(), choice.label, f"schedule {choice.label}")
    require_room(problem, choice.label)
    report = {"progress": partial(watch, choice.label)} if known.tells_progress() and watch is not None else {}
    found = [(planned, _run(known, choice, planned, options | report)) for planned in _planned(known, problem)]
    planned, made = found[0] if len(found) == 1 else min(found, key=lambda pair: _seconds(problem, pair[1]))
    schedule, proof = (made, None) if isinstance(made, Schedule) else (made.schedule, made.proof)
    remark = _called(known.remark, choice, planned, options) if known.remark else None
    generated = Generated(schedule.renamed(choice.label), proof, () if remark is None else (remark,))
    validate(generated.schedule, problem)
    return generated


def _planned(known: Family, problem: Problem) -> list[Problem]:
    """What the generator is to plan: for every replica that travels differently, or of a solver for the farthest."""
    if not known.uses_spare_memory:
        return [problem]
    every, pairs = problem.with_each_first(), list(pairwise(problem.stage_to_rank))
    if not known.solver:
        return every

    def there_and_back_s(planned: Problem) -> float:
        return sum(planned.route_delay(a, b) + planned.route_delay(b, a) for a, b in pairs)

    return [max(every, key=there_and_back_s)]


def _seconds(problem: Problem, made: Schedule | Solution) -> float:
    schedule = made if isinstance(made, Schedule) else made.schedule
    return makespan(problem, schedule)


def _run(known: Family, choice: ScheduleChoice, problem: Problem, options: dict[str, Any]) -> Schedule | Solution:
    """What the generator makes; a user's own that fails is bad input, and the line of the file is named."""
    made = _called(known.generate, choice, problem, options)
    if in_file(choice.schedule) is not None and not isinstance(made, Schedule):
        expected = f"a generator of a Schedule, not {type(made).__name__}"
        raise BadInput.of(f"schedule {choice.label}", "schedule", choice.schedule, expected)
    return made


def _called(function: Callable[..., T], choice: ScheduleChoice, problem: Problem, options: dict[str, Any]) -> T:
    """What one of a family's functions gives; errors as of `_run`."""

    def refused(problem: str) -> BadInput:
        expected = f"a generator that works ({problem})"
        return BadInput.of(f"schedule {choice.label}", "schedule", choice.schedule, expected)

    with own_code(in_file(choice.schedule), refused):
        return function(problem, **options)
