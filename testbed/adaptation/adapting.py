"""What adapts: it learns from every iteration, asks its controller, and has the candidate that runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import NamedTuple, Protocol

from testbed.adaptation.adaptable_job import AdaptableJob, planned_belief
from testbed.adaptation.candidate import JobCandidate, Prospect
from testbed.adaptation.controller import WORTH, Decide, Outlook
from testbed.adaptation.estimates import CONFIRMING, Belief, Estimator, Learnt
from testbed.adaptation.looks import Look, Looks, hopes
from testbed.adaptation.prospects import Prospects
from testbed.adaptation.recurrence import BelievedPhase
from testbed.adaptation.sightings import Path, Sighting, TrainTimes
from testbed.adaptation.swap_costs import Sends, SwapCosts
from testbed.errors import BadInput

NOTHING: Mapping[Path, TrainTimes] = MappingProxyType({})

PHASES = 8
"""So many of the latest are remembered."""

MOST_READINGS = 8
"""Of the same iteration, each by what was believed after the one before it."""

SAME_SHARE = 0.01
"""By so much of it what messages take by themselves may differ between two readings to be the same."""


class Step(NamedTuple):
    """What came of one iteration."""

    learnt: Learnt
    belief: Belief
    swapped_to: Prospect | None
    stays_s: float
    """What the next iteration is predicted to take with the schedule that ran ..."""
    expected_s: float
    """... and with the one that goes on."""
    swap_s: float
    """What the swap is taken to cost; 0 of none."""
    look: Look | None
    """At a route that is not used: beside the iteration that comes next, or before it begins."""


class _Since(NamedTuple):
    belief: Belief
    iterations: int


class AnyProspects(Protocol):
    """What may run, and what it would take: of one job (Prospects), or of several (StartProspects)."""

    @property
    def every(self) -> list[Prospect]:
        """All that are candidates now; nothing is predicted of them."""

    def beside(self, running: Prospect, belief: Belief) -> tuple[Prospect, list[Prospect]]:
        """The running candidate with what it is predicted to take now, and all of them, that one included."""

    def times(self, belief: Belief) -> Mapping[JobCandidate, float]:
        """What an iteration takes with each candidate if that is so."""

    def as_planned(self, seen: Sighting, running: Prospect) -> Sighting:
        """What is seen of the running candidate, as it would be of microbatches and stages as they are planned."""

    def alone(self, belief: Belief, running: Prospect) -> Mapping[Path, float]:
        """Of what even the fastest message between two datacenters takes longer than a probe, the share that it would
        take by itself, if that is so.
        """

    def sends_s(self, belief: Belief) -> Sends:
        """What swaps send, if that is so."""

    def in_the_way(self, paths: Collection[Path], running: Prospect) -> bool:
        """Whether what goes along these paths would be in the way of what the running candidate sends."""

    @property
    def message_bytes(self) -> float:
        """Of the longest message of a pipeline on the wire, as planned."""


def adapting_job(subject: AdaptableJob, decide: Decide, swap_s: float, running: str | None = None) -> Adapting:
    """A job that begins with what is fastest as planned, or with the choice labelled `running`.

    Raises DoesNotFit where no choice has room, BadInput where the one to begin with has none.
    """
    prospects, planned = Prospects(subject), planned_belief(subject)
    best = prospects.to_begin_with(planned)
    begun = best if running is None else prospects.labelled(running, planned)
    if begun is None:
        fitting = prospects.made_for(planned)
        expected = f"a schedule that fits ({', '.join(each.label for each in fitting)})"
        raise BadInput.of("--begin", "schedule", running, expected)
    return Adapting(prospects, planned, begun, decide, swap_s)


class Adapting:
    """What adapts: it learns from every iteration, asks its controller, and has the candidate that runs."""

    def __init__(
        self, prospects: AnyProspects, planned: Belief, begun: Prospect, decide: Decide, swap_s: float
    ) -> None:
        """Swaps are taken to cost `swap_s` until it is told what they took."""
        self._prospects, self._decide, self.swap_costs = prospects, decide, SwapCosts(swap_s)
        self.running, self._planned, self._estimator = begun, planned, Estimator(planned)
        self._looks = Looks(planned, prospects.message_bytes)
        self._estimator.use(begun.setting.paths)
        self._believed, self._doubted = [_Since(self._estimator.belief, 0)], 0

    def after(
        self, iteration: int, seen: Sighting, looked: Mapping[Path, TrainTimes] = NOTHING, waited_s: float = 0.0
    ) -> Step:
        """Take an iteration that has ended, and what the look has shown that was asked for, for which the job waited;
        `running` is then what the next one has to run.
        """
        size, planned = self._prospects.message_bytes, self._planned.paths
        trains = {path: train.crossing(size, planned[path].rate_bps.value) for path, train in looked.items()}
        seen = seen._replace(looked=trains)
        self._looks.took(waited_s)
        learnt = self._learn(seen)
        belief, doubts = self._estimator.belief, self._estimator.doubts
        self._remember(belief, doubts, bool(learnt.changes))
        self.running, prospects = self._prospects.beside(self.running, belief)
        self.swap_costs.sends_s = self._prospects.sends_s(belief)
        phases = [BelievedPhase(each.iterations, self._prospects.times(each.belief)) for each in self._believed]
        asked = iteration, self.running, prospects, self.swap_costs, belief, doubts, seen.iteration_s, phases
        chosen = self._decide(Outlook(*asked))
        if chosen is not None and chosen.candidate == self.running.candidate:
            chosen = None
        swap_s = 0.0 if chosen is None else self.swap_costs.between(self.running.setting, chosen.setting)
        stays_s, self.running = self.running.predicted_s, chosen or self.running
        self._estimator.use(self.running.setting.paths)
        self._looks.ended(belief, {*seen.crossings, *seen.looked}, seen.iteration_s)
        look = self._look()
        return Step(learnt, belief, chosen, stays_s, self.running.predicted_s, swap_s, look)

    def _look(self) -> Look | None:
        running, belief = self.running, self._estimator.belief

        def gain_s(hoped: Belief) -> float:
            least_s = min(self._prospects.times(hoped).values())
            return max(0.0, running.predicted_s - least_s - WORTH * running.predicted_s)

        def in_the_way(paths: Collection[Path]) -> bool:
            return self._prospects.in_the_way(paths, running)

        hoped = hopes(belief, self._planned, running.setting.paths, gain_s)
        return self._looks.next(hoped, self._estimator.noise_s, self._estimator.doubted, in_the_way)

    @property
    def candidates(self) -> list[Prospect]:
        """All that it may swap to."""
        return self._prospects.every

    def _learn(self, seen: Sighting) -> Learnt:
        """What messages would take by themselves depends on what is believed: again where that has changed, until what
        is believed says the same of them. Several beliefs may; one from before is then meant.
        """
        seen, before, taken = self._prospects.as_planned(seen, self.running), self._estimator, self._alone()
        learnt, _ = self._read(seen, before, taken, taken)
        found = self._estimator
        for earlier in self._earlier() if learnt.changes else ():
            said = self._prospects.alone(earlier, self.running)
            again, rests = self._read(seen, before, taken, said, readings=1)
            if rests and self._estimator.belief.paths == earlier.paths:
                return again
        self._estimator = found
        return learnt

    def _read(
        self,
        seen: Sighting,
        before: Estimator,
        taken: Mapping[Path, float],
        shares: Mapping[Path, float],
        readings: int = 1 + MOST_READINGS,
    ) -> tuple[Learnt, bool]:
        """What an iteration teaches who takes messages for these shares at first, those so far having been `taken` for
        others; and whether what is believed then says the same of them.
        """
        moved = dict.fromkeys(shares, 0.0)
        for _ in range(readings):
            self._estimator = deepcopy(before)
            self._estimator.reread({path: shares[path] / share for path, share in taken.items() if share})
            learnt, said = self._estimator.learn(seen.by_themselves(shares)), self._alone()
            moves = {path: said[path] - share for path, share in shares.items()}
            rests = all(abs(move) <= SAME_SHARE * shares[path] for path, move in moves.items())
            if rests or not learnt.changes:
                break
            swings = {path for path, move in moves.items() if move * moved[path] < 0}
            shares = {path: (shares[path] + said[path]) / 2 if path in swings else said[path] for path in moves}
            moved = moves
        return learnt, rests

    def _earlier(self) -> list[Belief]:
        """What was believed before, the latest first."""
        return [*(since.belief for since in self._believed[-2::-1]), self._planned]

    def _alone(self) -> Mapping[Path, float]:
        return self._prospects.alone(self._estimator.belief, self.running)

    def _remember(self, belief: Belief, doubts: bool, changed: bool) -> None:
        self._doubted += 1
        if changed:
            if len(self._believed) > 1 and self._believed[-1].iterations < CONFIRMING:
                # what it was taken for at first, corrected: the same change
                self._doubted += self._believed.pop().iterations
            self._believed = [*self._believed[1 - PHASES :], _Since(belief, 0)]
        if not doubts:
            last = self._believed[-1]
            self._believed[-1] = last._replace(iterations=last.iterations + self._doubted)
            self._doubted = 0
