"""A schedule family: how it generates, where it puts stages, which options it takes, what it does with memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.plugins import Unusable
from testbed.spec.plugin_options import checked_options

if TYPE_CHECKING:
    from testbed.schedule.optimal import Solution


@dataclass(frozen=True)
class Family:
    """A way to schedule."""

    generate: Callable[..., Schedule | Solution]
    """(problem, **options) -> Schedule, of a solver Solution. One that works for long also takes `progress`.

    Its parameters behind the problem are the family's options; `Annotated[int, Field(ge=1)]` gives one bounds."""
    summary: str = ""
    placement: Placement | tuple[int, ...] = Placement.UD
    """How stages lie on ranks; a tuple has the rank of every stage, for one number of ranks only."""
    solver: bool = False
    """May take its whole time limit: left out of `best` unless the workload lists it."""
    uses_spare_memory: bool = False
    """Whether its order changes where a rank may hold more microbatches; False for a fixed order."""
    remark: Callable[..., str | None] | None = None
    """(problem, **options) -> what a user should know of the schedule that these make, such as what memory cost it."""

    def stage_to_rank(self, n_ranks: int) -> tuple[int, ...]:
        """The rank of every stage. Raises Unusable when the family is made for another number of ranks."""
        if isinstance(self.placement, Placement):
            return stage_to_rank(self.placement, n_ranks)
        made_for = max(self.placement) + 1
        if made_for != n_ranks:
            raise Unusable(f"a schedule for {made_for} ranks", f"one for {n_ranks} ranks")
        return self.placement

    def option_names(self) -> list[str]:
        """Options the generator takes beside the problem."""
        return [name for name in list(inspect.signature(self.generate).parameters)[1:] if name != "progress"]

    def default(self, option: str, given: Mapping[str, Any]) -> Any:
        """What an option is, as given or by default; None where there is no such option."""
        known = inspect.signature(self.generate).parameters.get(option)
        return None if known is None else given.get(option, known.default)

    def tells_progress(self) -> bool:
        """Whether the generator takes `progress`, who is told how far it has come."""
        return "progress" in inspect.signature(self.generate).parameters

    def options(self, given: Mapping[str, Any], name: str, source: str, field: str = "") -> dict[str, Any]:
        """The options as the generator's types have them; `field` stands in front of an option's name in errors.

        Raises BadInput naming the option, and what is expected of it.
        """
        return checked_options(self.generate, self.option_names(), given, name, (source, field))


def as_family(name: str, loaded: object) -> Family:
    """What is registered as a schedule: a Family, or a function problem -> Schedule. Raises Unusable."""
    if isinstance(loaded, Family):
        return loaded
    if callable(loaded) and not isinstance(loaded, type):
        return Family(loaded, (inspect.getdoc(loaded) or "").split("\n")[0])
    raise Unusable(name, f"a Family or a function problem -> Schedule, not {type(loaded).__name__}")
