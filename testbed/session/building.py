"""A lab built as one step that is reported; leaving it takes the lab down, whatever happened meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from testbed.lab.host_settings import HostPriority
from testbed.lab.lab import Lab
from testbed.plan.plan import Plan
from testbed.progress import Reporter


@contextmanager
def built(
    plan: Plan,
    reporter: Reporter,
    *,
    shaper: str,
    host_priority: HostPriority,
    largest_burst_bytes: int | None = None,
) -> Iterator[Lab]:
    """A live lab of the plan's network; the options are `Lab`'s. The step is over when the lab stands.

    Raises MachineLacks or RunFailed.
    """
    room = {} if largest_burst_bytes is None else {"largest_burst_bytes": largest_burst_bytes}
    with ExitStack() as opened:
        with reporter.step(f"building {plan.network.name}") as step:
            lab = Lab(plan, shaper=shaper, progress=step.detail, host_priority=host_priority, **room)
            opened.enter_context(lab)
        yield lab
