"""What a job that adapts may change beside its schedule, as a user asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.plan.plan import MOST_STARTS
from testbed.routing.candidates import MOST_ROUTES

VARY = "--vary"
"""The option of commands."""

_MOST_DIGITS = 9
_FORMS = f"microbatches=N,N..., routes=N (1 to {MOST_ROUTES}) or stages; of several jobs starts=N (1 to {MOST_STARTS})"


class MayChange(NamedTuple):
    """Beside the order of its actions."""

    microbatches: tuple[int, ...] = ()
    """Into how many, beside the workload's own number, it may cut a pipeline's batch."""
    routes: int = 1
    """Between two datacenters; 1: the one that the plan has."""
    stages: bool = False
    """Whether they may go on on other ranks, so that weights move."""
    starts: int = 0
    """Of several jobs, at how many places to either side their starts are looked for; 0: those that the plan has."""


NOTHING = MayChange()


def may_change(texts: Sequence[str]) -> MayChange:
    """What texts such as "microbatches=4,16", "routes=2", "stages" and "starts=8" say. Raises BadInput."""
    found = NOTHING
    for text in texts:
        what, _, values = text.partition("=")
        numbers = values.split(",") if values else []
        if not all(number.isdecimal() and len(number) <= _MOST_DIGITS for number in numbers):
            raise BadInput.of(VARY, "option", text, _FORMS)
        if what == "microbatches" and numbers:
            found = found._replace(microbatches=(*found.microbatches, *map(int, numbers)))
        elif what == "routes" and len(numbers) == 1 and 1 <= int(values) <= MOST_ROUTES:
            found = found._replace(routes=int(values))
        elif what == "starts" and len(numbers) == 1 and 1 <= int(values) <= MOST_STARTS:
            found = found._replace(starts=int(values))
        elif text == "stages":
            found = found._replace(stages=True)
        else:
            raise BadInput.of(VARY, "option", text, _FORMS)
    return found
