"""A row under construction whose blocks of one stage and kind run in microbatch order, so only the stage is named."""

from __future__ import annotations

from collections import Counter

from testbed.pipeline.ir import Action, Kind, Row


class InOrderRow:
    """Adds "the next F of stage 3" again and again."""

    def __init__(self, n_microbatches: int) -> None:
        self.n_microbatches = n_microbatches
        self._actions: list[Action] = []
        self._next: Counter[tuple[int, Kind]] = Counter()

    def add(self, kind: Kind, stage: int) -> int:
        """Append the stage's next block of this kind, and return its microbatch.

        B counts as I, so that a row may mix full and split backwards.
        """
        order = Kind.I if kind is Kind.B else kind
        microbatch = self._next[stage, order]
        self._next[stage, order] += 1
        self.append(Action(stage, kind, microbatch))
        return microbatch

    def append(self, action: Action) -> None:
        """Append a block out of turn."""
        self._actions.append(action)

    def row(self) -> Row:
        """The actions so far, without those of microbatches beyond the last.

        A schedule for more microbatches stays one when some are left out: no block waits for another microbatch's.
        """
        return tuple(a for a in self._actions if a.microbatch is not None and a.microbatch < self.n_microbatches)
