"""A controller that stays with nothing: every kind of swap is made, whatever it brings."""

from itertools import count
from typing import Annotated

from pydantic import Field

from testbed.adaptation.candidate import Prospect
from testbed.adaptation.controller import Decide, Outlook


def restless(every: Annotated[int, Field(ge=1, le=100)] = 3) -> Decide:
    """After so many iterations it goes on with the next candidate: in another setting, where there is one."""
    turns = count()

    def decide(outlook: Outlook) -> Prospect | None:
        if (outlook.iteration + 1) % every:
            return None
        running = outlook.running
        others = [each for each in outlook.prospects if each.candidate != running.candidate]
        elsewhere = [each for each in others if each.setting != running.setting] or others
        return elsewhere[next(turns) % len(elsewhere)] if elsewhere else None

    return decide
