"""The picture of a rehearsal: every iteration of all three, what happened, and what the controller believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.adaptation.adaptation_picture import CONTROLLER, NEVER, ORACLE, AdaptationCurves, draw_curves
from testbed.adaptation.estimates import Belief, named
from testbed.adaptation.rehearsal import OVER, Rehearsal
from testbed.adaptation.sightings import Path as Crossed


def draw(
    rehearsal: Rehearsal, planned: Belief, message_bytes: float, path: Path, heading: str, jobs: Sequence[str] = ()
) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`); of several `jobs` each has curves of its own."""
    rows = rehearsal.rows
    times_s = {
        NEVER: [row.never_s for row in rows],
        ORACLE: [row.oracle_s for row in rows],
        CONTROLLER: [row.adapted_s for row in rows],
    }
    swaps = [place for place, row in enumerate(rows) if row.step.swapped_to is not None]
    seen = [place for place, row in enumerate(rows) if row.step.learnt.alarms]
    believed = _believed(rehearsal, planned, message_bytes)
    each = {}
    for number, name in enumerate(jobs if len(jobs) > 1 else ()):
        mine = [row.jobs[number] for row in rows]
        each[name] = {
            NEVER: [one.never_s for one in mine],
            ORACLE: [one.oracle_s for one in mine],
            CONTROLLER: [one.adapted_s for one in mine],
        }
    draw_curves(AdaptationCurves(heading, times_s, swaps, seen, believed, _happens(rehearsal), each), path)


def _believed(rehearsal: Rehearsal, planned: Belief, message_bytes: float) -> dict[str, list[float]]:
    """Of messages and ranks, as so many times what was planned."""

    def message(which: Crossed) -> Callable[[Belief], float]:
        return lambda belief: belief.paths[which].crossing_s(message_bytes)

    def rank(number: int) -> Callable[[Belief], float]:
        return lambda belief: sum(slot.value for which, slot in belief.slots.items() if which[0] == number)

    curves = {f"message {named(which)}": message(which) for which in planned.paths}
    curves |= {f"rank {number}": rank(number) for number in sorted({which[0] for which in planned.slots})}
    found = {}
    for label, of in curves.items():
        usual = of(planned)
        found[label] = [of(row.step.belief) / usual if usual else 1.0 for row in rehearsal.rows]
    return found


def _happens(rehearsal: Rehearsal) -> list[tuple[int, list[str]]]:
    """Where anything changes, and in words what, the first time."""
    known: set[str] = set()
    found = []
    for row in rehearsal.rows:
        if row.happens:
            words = [what for what in row.happens if what not in known and not what.startswith(OVER)]
            known.update(words)
            found.append((row.iteration, words))
    return found
