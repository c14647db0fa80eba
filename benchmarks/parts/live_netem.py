"""netem whose rate and delay change while packets are under way, at instants of the clock: what no run uses."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from testbed.errors import RunFailed
from testbed.lab.shaping import TimedChange
from testbed.lab.shaping.netem import NetemShaper


class LiveNetem(NetemShaper):
    """Changes its qdiscs from a thread. It cannot hold what comes: netem has nothing for that."""

    name = "netem"

    def __init__(self) -> None:
        super().__init__()
        self._happened: list[tuple[int, float]] = []
        self._scheduled = 0

    def schedule(self, changes: Sequence[TimedChange]) -> None:
        """See TimedShaper. Raises RunFailed for an outage."""
        if any(one.sends is False for one in changes):
            raise RunFailed("netem cannot hold what comes until it sends again")
        numbered = list(enumerate(changes, self._scheduled))
        self._scheduled += len(changes)
        threading.Thread(target=self._play, args=(sorted(numbered, key=lambda one: one[1].at_s),), daemon=True).start()

    def _play(self, numbered: Sequence[tuple[int, TimedChange]]) -> None:
        for number, one in numbered:
            time.sleep(max(0.0, one.at_s - time.monotonic()))
            values = {name: getattr(one, name) for name in ("delay_s", "rate_bps")}
            self.change(one.direction, **{name: value for name, value in values.items() if value is not None})
            self._happened.append((number, time.monotonic()))

    def happened(self) -> list[float]:
        """See TimedShaper."""
        found, self._happened = [instant for _, instant in sorted(self._happened)], []
        return found
