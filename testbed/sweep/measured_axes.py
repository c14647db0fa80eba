"""Points of a comparison of axes measured in virtual time: the fastest schedule of either axis, all in one boot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testbed.plan.plan import Clock
from testbed.planning.resolve import with_cases, with_clock
from testbed.progress import Reporter
from testbed.spec.workload import Workload
from testbed.sweep.axes import AXES, Compared, Winner, made_over, winner_of
from testbed.vm import command

CLOCK = Clock("virtual")


class MeasuredPoint(NamedTuple):
    """What was measured at a point: entries of comparison.json, None where there is none."""

    predicted: Compared
    pipeline: dict[str, Any] | None
    data: dict[str, Any] | None

    @property
    def winner(self) -> Winner | None:
        """The axis that was faster; None where one was not measured."""
        if self.pipeline is None or self.data is None:
            return None
        return winner_of(self.pipeline["full_scale"]["measured_s"], self.data["full_scale"]["measured_s"])

    @property
    def trusted(self) -> bool:
        """Both runs were."""
        return all(row is not None and row["trusted"] for row in (self.pipeline, self.data))

    @property
    def as_predicted(self) -> bool:
        """The predicted axis won; where there is no telling, either way."""
        both = {self.winner, self.predicted.winner}
        return None not in both and (len(both) == 1 or "either" in both)

    def as_json(self) -> dict[str, object]:
        """For machines."""
        point = self.predicted.point
        facts = {"delay_s": point.delay_s, "rate_bps": point.rate_bps}
        return facts | {"winner": self.winner, "pipeline": self.pipeline, "data": self.data}


def spread(points: Sequence[Compared], count: int) -> list[Compared]:
    """So many of the points, evenly from first to last."""
    count = min(count, len(points))
    return [points[round(index * (len(points) - 1) / max(1, count - 1))] for index in range(count)]


def measure(
    workload: Workload, points: Sequence[Compared], directory: Path, *, limit_s: float, reporter: Reporter
) -> list[MeasuredPoint]:
    """Both axes at every point; results go to directories of their own. Raises MachineLacks, RunFailed or BadInput."""
    machine = command.choose_machine(CLOCK)
    trainings = []
    for number, point in enumerate(points):
        for axis in AXES:
            best = (point.pipeline if axis == "pipeline" else point.data).best
            plan, (found,) = made_over(workload, axis, point.point, [best])
            cased = with_clock(with_cases(plan, [found.choice], {found.choice.label: found.generated}), CLOCK)
            place = directory / f"{number:02}-{axis}"
            place.mkdir(parents=True, exist_ok=True)
            trainings.append(command.GuestTraining(cased, place))
    _, documents = command.train(machine, trainings, limit_s=limit_s, reporter=reporter)
    rows = [None if document is None else document["schedules"][0] for document in documents]
    rows += [None] * (len(trainings) - len(rows))
    return [
        MeasuredPoint(point, *pair) for point, pair in zip(points, zip(rows[::2], rows[1::2], strict=True), strict=True)
    ]
