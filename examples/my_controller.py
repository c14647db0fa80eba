"""A controller of one's own for a job that adapts: swaps at once to whatever is fastest, if that gains enough."""

from typing import Annotated

from pydantic import Field

from testbed.adaptation.candidate import Prospect
from testbed.adaptation.controller import Decide, Outlook


def eager(gain: Annotated[float, Field(ge=0, le=1)] = 0.05) -> Decide:
    """One that swaps for `gain` of an iteration; it is asked after each one, with what is believed then."""

    def decide(outlook: Outlook) -> Prospect | None:
        best = outlook.prospects[0]
        return best if best.predicted_s < (1 - gain) * outlook.running.predicted_s else None

    return decide
