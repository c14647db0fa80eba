"""What a swap costs: what it is assumed to at first, then what swaps of its kind have really taken."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from testbed.adaptation.candidates import Candidate, Setting

SCHEDULE, MICROBATCHES, ROUTES = "schedule", "microbatches", "routes"
"""What a swap may change: the order of actions alone; messages, which are posted anew; where flows go."""


def kind_of(one: Setting, other: Setting) -> str:
    """Of a swap between candidates in these settings."""
    changed = [MICROBATCHES] if one.microbatches != other.microbatches else []
    changed += [ROUTES] if one.paths != other.paths else []
    return " and ".join(changed) or SCHEDULE


class SwapCosts:
    """Seconds that a job does not train, by the kind of swap."""

    def __init__(self, assumed_s: float) -> None:
        self.assumed_s = assumed_s
        self._taken_s: dict[str, list[float]] = {}

    @property
    def known(self) -> list[str]:
        """The kinds of swaps that there were."""
        return list(self._taken_s)

    def learn(self, kind: str, seconds: float) -> None:
        """A swap of a kind has taken so long."""
        self._taken_s.setdefault(kind, []).append(seconds)

    def believed_s(self, kind: str) -> float:
        """What one of a kind is taken to cost: the median of those that there were, else what is assumed."""
        return median(self._taken_s[kind]) if kind in self._taken_s else self.assumed_s

    def between(self, one: Setting, other: Setting) -> float:
        """The same of a swap from a candidate in one setting to another one in the other."""
        return self.believed_s(kind_of(one, other))

    def matrix(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """From every one of these candidates, by row, to every other one; 0 to itself."""
        settings = list(dict.fromkeys(candidate.setting for candidate in candidates))
        of_settings = np.array([[self.between(one, other) for other in settings] for one in settings])
        places = [settings.index(candidate.setting) for candidate in candidates]
        found: NDArray[np.float64] = of_settings[np.ix_(places, places)]
        np.fill_diagonal(found, 0.0)
        return found
