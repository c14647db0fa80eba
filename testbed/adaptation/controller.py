"""Controllers decide, after every iteration, whether the job goes on with another schedule; by name, or in a file.

A controller is a function of its options that returns another one, which is asked after every iteration: from an
Outlook to the prospect to swap to, or None. `ski-rental` is the one that comes with the testbed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from testbed.adaptation.candidate import JobCandidate, Prospect
from testbed.adaptation.estimates import Belief
from testbed.adaptation.recurrence import BelievedPhase, ahead, best_next, turn_since
from testbed.adaptation.swap_costs import SwapCosts
from testbed.errors import BadInput
from testbed.plugins import Registry, Unusable, in_file, own_code, read_content
from testbed.spec import yaml_tree
from testbed.spec.plugin_options import checked_options

WORTH = 0.005
"""Of an iteration: what a swap has to gain at least, whatever it costs."""

DWELL = 3
"""Iterations that a schedule runs at least: as many as it takes to see what it does."""

LASTS = 3
"""Iterations that what has changed is expected to stay at least: what lasts less than a dwell nobody can follow."""


class Outlook(NamedTuple):
    """What a controller is asked with."""

    iteration: int
    """That has just ended, counted from 0."""
    running: Prospect
    prospects: Sequence[Prospect]
    """All candidates, the fastest first; the running one may be among them."""
    swap_costs: SwapCosts
    """What swaps cost, by what they change."""
    belief: Belief
    doubts: bool
    """Whether something was seen that is not confirmed yet: predictions may be of what is no longer so."""
    last_s: float
    """The iteration, as measured."""
    phases: Sequence[BelievedPhase]
    """What was believed lately, and now: the last one is not over yet. Iterations in doubt are those of the next."""

    def swap_s(self, prospect: Prospect) -> float:
        """What it costs to go on with another candidate than the one that runs."""
        return self.swap_costs.between(self.running.setting, prospect.setting)


Decide = Callable[[Outlook], Prospect | None]
Controller = Callable[..., Decide]
"""(**options) -> Decide; each call begins anew."""


def ski_rental(
    dwell: Annotated[int, Field(ge=1, le=1000)] = DWELL,
    worth: Annotated[float, Field(ge=0, le=1)] = WORTH,
    lasts: Annotated[int, Field(ge=0, le=1000)] = LASTS,
) -> Decide:
    """Swaps once as much has been lost by not having swapped as a swap costs: never twice what an oracle pays.

    And at once where as much is to be gained in the few iterations that what has changed is expected to last; 0: the
    ski rental alone.
    """
    return _SkiRental(dwell, worth, lasts)


def never() -> Decide:
    """Keeps the schedule that it began with."""
    return lambda outlook: None


@dataclass
class _SkiRental:
    dwell: int
    worth: float
    lasts: int
    since_swap: int = 0
    doubted: int = 0
    """Iterations whose loss is counted once it is known what they were under."""
    lost_s: dict[JobCandidate, float] = field(default_factory=dict)
    """By not running a candidate, since it was last no better."""

    def __call__(self, outlook: Outlook) -> Prospect | None:
        self.since_swap += 1
        if outlook.doubts:
            self.doubted += 1
            return None
        iterations, self.doubted = 1 + self.doubted, 0
        expected_s = expected(outlook)
        running_s = expected_s[outlook.running.candidate]
        self.lost_s = {
            candidate: max(0.0, self.lost_s.get(candidate, 0.0) + iterations * (running_s - candidate_s))
            for candidate, candidate_s in expected_s.items()
        }
        if spans := ahead(outlook.phases):  # whose swaps are paid for: no dwell has to hold them back
            return self._foresees(outlook, best_next(spans, outlook.running.candidate, outlook.swap_costs))
        if self.since_swap < self.dwell:
            return None
        able = [
            each
            for each in outlook.prospects
            if (gain_s := running_s - expected_s[each.candidate]) > self.worth * running_s
            and max(self.lost_s[each.candidate], self.lasts * gain_s) >= outlook.swap_s(each)
        ]
        if not able:
            return None
        self.since_swap, self.lost_s = 0, {}
        return min(able, key=lambda each: expected_s[each.candidate])

    def _foresees(self, outlook: Outlook, best: JobCandidate) -> Prospect | None:
        """What is best over all that is known to be ahead is begun at once, maybe just before it is needed."""
        if best == outlook.running.candidate:
            return None
        self.since_swap, self.lost_s = self.dwell, {}  # what was foreseen and does not come is undone at once
        return next(each for each in outlook.prospects if each.candidate == best)


def expected(outlook: Outlook) -> Mapping[JobCandidate, float]:
    """What an iteration is to be expected to take with each candidate.

    As predicted for now, since what has changed mostly stays so. Where it has come back to what it was, it may go on
    to come and go: if a swap for every turn, an iteration late, costs more than one schedule for all of them, it is the
    mean over a turn.
    """
    now, turn = outlook.phases[-1].predicted_s, turn_since(outlook.phases)
    if not turn:
        return now
    others = turn[:-1]
    typical = max(1, round(sum(phase.iterations for phase in others) / len(others)))
    turn[-1] = BelievedPhase(max(typical, turn[-1].iterations), now)
    length = sum(phase.iterations for phase in turn)
    mean = {each: sum(phase.iterations * phase.predicted_s[each] for phase in turn) / length for each in now}
    follow_s = 0.0
    for before, phase in zip([turn[-1], *turn], turn, strict=False):
        best, late = (min(one.predicted_s, key=one.predicted_s.__getitem__) for one in (phase, before))
        late_s = phase.predicted_s[late] - phase.predicted_s[best]
        swap_s = outlook.swap_costs.between(late.setting, best.setting)
        follow_s += phase.iterations * phase.predicted_s[best] + late_s + swap_s
    return mean if length * min(mean.values()) <= follow_s else now


def _as_controller(name: str, loaded: object) -> Controller:
    if callable(loaded) and not isinstance(loaded, type):
        return loaded
    raise Unusable(name, f"a function of options -> function Outlook -> Prospect, not {type(loaded).__name__}")


CONTROLLERS = Registry(
    "testbed.controllers",
    {
        "ski-rental": "testbed.adaptation.controller:ski_rental",
        "never": "testbed.adaptation.controller:never",
    },
    _as_controller,
)
"""To add one: a function, and a line here (docs/extending.md)."""


@dataclass(frozen=True)
class ControllerChoice:
    """A controller with its options, as a user asked for it."""

    label: str
    """NAME, or NAME,OPTION=VALUE..."""
    controller: Controller
    options: dict[str, Any]
    content: str | None
    """Of one in a file, what the file holds."""
    asked_by: str
    """The option of the command."""

    def begin(self) -> Decide:
        """One that knows nothing yet. A user's own that fails is bad input, and the line of the file is named."""
        decide = self._called(lambda: self.controller(**self.options))
        if not callable(decide):
            expected = "a function that returns a function of an Outlook"
            raise BadInput.of(self.asked_by, self.label, type(decide).__name__, expected)
        return lambda outlook: self._checked(self._called(lambda: decide(outlook)))

    def _called(self, call: Callable[[], Any]) -> Any:
        def refused(problem: str) -> BadInput:
            return BadInput.of(self.asked_by, "controller", self.label, f"a controller that works ({problem})")

        with own_code(in_file(self.label.split(",")[0]), refused):
            return call()

    def _checked(self, decided: object) -> Prospect | None:
        if decided is None or isinstance(decided, Prospect):
            return decided
        raise BadInput.of(self.asked_by, self.label, decided, "one of the outlook's prospects, or None")


def choose(
    text: str, directory: Path | None = None, option: str = "--controller", content: str | None = None
) -> ControllerChoice:
    """The controller that `text` asks for: NAME or FILE.py:NAME, then options as `,dwell=5`.

    A file is read, relative to `directory`, unless its `content` is known. Raises BadInput naming what is registered,
    or the option (`option` is the command's) and what is expected of it.
    """
    name, *settings = text.split(",")
    given: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise BadInput.of(option, text, setting, "OPTION=VALUE behind each comma")
        given[key.strip()] = yaml_tree.parse(value, option, text)
    reference = in_file(name)
    try:
        if reference is not None and content is None:
            content = read_content(reference.file, directory or Path())
        found = CONTROLLERS.find(name, content)
        known = list(inspect.signature(found).parameters)
        options = checked_options(found, known, given, name, (option, f"{name},"))
    except Unusable as error:
        raise error.at(option, "controller") from error
    return ControllerChoice(text, found, options, content, option)
