"""How far a figure may be from its baseline's: every tolerance, and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.plan.plan import Clock


class Mode(StrEnum):
    """How a baseline's figures were come by."""

    predict = "predict"
    """By the event model alone."""
    virtual = "virtual"
    """A run under the virtual clock."""
    real = "real"
    """A run on a real clock."""

    @property
    def in_words(self) -> str:
        """As it stands behind a baseline's name."""
        return "prediction" if self is Mode.predict else f"{self} clock"

    def clock(self, seed: int = 1) -> Clock:
        """The clock of its plan; what is predicted alone has none of a machine's time in it."""
        return Clock("real" if self is Mode.real else "virtual", seed)


class FigureKind(StrEnum):
    """What is compared of a schedule."""

    measured = "measured"
    """Median iteration time, seconds."""
    predicted = "predicted"
    """Predicted iteration time, seconds."""
    remade = "made anew"
    """Predicted iteration time of what the generator makes today, seconds; a solver's schedule is not made anew."""
    error = "error"
    """(measured - predicted) / predicted; only a larger distance from 0 counts."""
    speedup = "speed-up"
    """Over the first schedule of the same run."""
    bubble = "bubble"
    """Idle share of all ranks' time: the measured one where there is one."""
    in_flight = "in flight"
    """Most microbatches held at once on any rank: the measured one where there is one."""
    goodput = "goodput"
    """Of a job whose workers fail, the share of its time in iterations that it kept: the measured one where there is
    one."""
    loss = "loss"
    """Loss of the last measured iteration."""
    control = "control"
    """Median iteration time of the same training without shaping, in the same run, seconds: no fault by itself."""


TIMES = (FigureKind.measured, FigureKind.predicted, FigureKind.remade, FigureKind.control)
"""Those in seconds."""


class Band(NamedTuple):
    """A figure may differ by the larger of the two."""

    absolute: float
    relative: float
    """Share of the baseline's figure."""

    def allowed(self, baseline: float) -> float:
        """The largest difference from this figure that is no difference."""
        return max(self.absolute, self.relative * abs(baseline))


SHARES = (FigureKind.error, FigureKind.bubble, FigureKind.goodput)
"""Those that are shares of a time, whose differences are in percentage points."""


Tolerances = Mapping[FigureKind, Band]
"""What is not in it is not compared."""

_SAME_ARITHMETIC = Band(0.0, 1e-9)
_SAME_COUNT = Band(1e-9, 0.0)
_SAME_LOSS = Band(0.0, 1e-5)

_DEFAULTS: dict[Mode, dict[FigureKind, Band]] = {
    Mode.predict: {
        FigureKind.predicted: _SAME_ARITHMETIC,
        FigureKind.remade: _SAME_ARITHMETIC,
        FigureKind.bubble: _SAME_COUNT,
        FigureKind.in_flight: _SAME_COUNT,
    },
    Mode.virtual: {
        FigureKind.measured: Band(20e-6, 50e-6),
        FigureKind.predicted: Band(20e-6, 50e-6),
        FigureKind.remade: Band(20e-6, 50e-6),
        FigureKind.error: Band(0.0, 0.0),
        FigureKind.bubble: Band(1e-4, 0.0),
        FigureKind.in_flight: _SAME_COUNT,
        FigureKind.loss: _SAME_LOSS,
    },
    Mode.real: {
        FigureKind.speedup: Band(0.0, 0.05),
        FigureKind.predicted: _SAME_ARITHMETIC,
        FigureKind.remade: _SAME_ARITHMETIC,
        FigureKind.error: Band(0.03, 0.0),
        FigureKind.in_flight: _SAME_COUNT,
        FigureKind.loss: _SAME_LOSS,
    },
}

_REAL_WITH_CONTROL: dict[FigureKind, Band] = {
    FigureKind.measured: Band(0.0, 0.05),
    FigureKind.control: Band(0.0, 0.025),
    **{kind: band for kind, band in _DEFAULTS[Mode.real].items() if kind not in (FigureKind.speedup, FigureKind.error)},
}
"""A time that can be compared says all that a speed-up and a distance from an unchanged prediction do."""

_GOODPUT = {Mode.predict: _SAME_COUNT, Mode.virtual: Band(5e-5, 0.0), Mode.real: Band(0.03, 0.0)}

REASONS: dict[tuple[Mode, FigureKind], str] = {
    (Mode.predict, FigureKind.predicted): "the same schedule on the same plan is the same arithmetic, up to its order",
    (Mode.predict, FigureKind.remade): "generators are deterministic",
    (Mode.predict, FigureKind.bubble): "as the time",
    (Mode.predict, FigureKind.goodput): "as the time",
    (Mode.virtual, FigureKind.goodput): "a share of times that may each move by so much",
    (
        Mode.real,
        FigureKind.goodput,
    ): "as the error: what a machine does beside makes iterations longer, not restarts",
    (Mode.predict, FigureKind.in_flight): "a property of the schedule",
    (Mode.virtual, FigureKind.measured): "over ten seeds of the guest's kernel it lies within 1 us (docs/figures.md); "
    "another guest kernel or package may move ticks and wake-ups by some microseconds, once per message on the way",
    (Mode.virtual, FigureKind.predicted): "a model that becomes truer may move as far as a measurement may",
    (Mode.virtual, FigureKind.remade): "as the predicted time: greedy schedules follow the model",
    (Mode.virtual, FigureKind.error): "beyond the tolerance of the measured time, as a share of the predicted one",
    (Mode.virtual, FigureKind.bubble): "follows the time",
    (Mode.virtual, FigureKind.in_flight): "a property of the schedule",
    (Mode.virtual, FigureKind.loss): "float32 sums in another order; what runs of one plan may differ by, too",
    (Mode.real, FigureKind.predicted): "the same schedule on the same plan is the same arithmetic",
    (Mode.real, FigureKind.remade): "generators are deterministic",
    (Mode.real, FigureKind.error): "what this machine does beside changes it: +1 to +4 % were seen",
    (Mode.real, FigureKind.speedup): "a ratio inside one run: what slows one schedule slows the other; absolute times "
    "of a real clock say as much about the machine's day and are not compared",
    (
        Mode.real,
        FigureKind.measured,
    ): "runs of one plan on one machine differ by +1 to +4 %; of what is more, the "
    "control says whether it is the machine",
    (Mode.real, FigureKind.control): "half of what the time may move by: from there on the machine is another one",
    (Mode.real, FigureKind.in_flight): "a property of the schedule",
    (Mode.real, FigureKind.loss): "float32 sums in another order",
}


def default_tolerances(mode: Mode, *, paced: bool, controlled: bool = False, recovers: bool = False) -> Tolerances:
    """What a new baseline is judged by; `controlled`: on the real clock, with a control; `recovers`: its job has a
    goodput.

    Without pacing the prediction is made of times measured in the run itself.
    """
    bands = _REAL_WITH_CONTROL if controlled else _DEFAULTS[mode]
    if recovers:
        bands = {**bands, FigureKind.goodput: _GOODPUT[mode]}
    if paced:
        return bands
    profiled = (FigureKind.predicted, FigureKind.remade, FigureKind.in_flight)
    return {quantity: band for quantity, band in bands.items() if quantity not in profiled}


def as_document(tolerances: Tolerances) -> dict[str, Any]:
    """For baseline.json."""
    return {str(quantity): band._asdict() for quantity, band in tolerances.items()}


def from_document(document: object, source: str) -> Tolerances:
    """What `as_document` wrote. Raises BadInput."""
    if not isinstance(document, dict):
        raise BadInput.of(source, "tolerances", document, "an object: quantity -> absolute and relative")
    result = {}
    for name, value in document.items():
        field = f"tolerances.{name}"
        if name not in list(FigureKind):
            raise BadInput.of(source, field, value, f"one of {', '.join(FigureKind)}")
        if not isinstance(value, dict) or set(value) != set(Band._fields):
            raise BadInput.of(source, field, value, "an object with absolute and relative")
        if not all(
            isinstance(number, int | float) and not isinstance(number, bool) and number >= 0
            for number in value.values()
        ):
            raise BadInput.of(source, field, value, "numbers of 0 or more")
        result[FigureKind(name)] = Band(**value)
    return result


def describe(tolerances: Tolerances, mode: Mode) -> list[str]:
    """One line per quantity: how far it may be off, and why that far."""
    lines = []
    for quantity, band in tolerances.items():
        reason = REASONS.get((mode, quantity), "set in this baseline")
        lines.append(f"{quantity}: {_show(quantity, band)} ({reason})")
    return lines


def _show(quantity: FigureKind, band: Band) -> str:
    timed = quantity in TIMES
    parts = []
    if band.absolute:
        if timed:
            parts.append(f"{band.absolute * 1e6:g} us")
        else:
            small = band.absolute < 1e-3 or quantity is FigureKind.in_flight
            parts.append(f"{band.absolute:g}" if small else f"{band.absolute * 100:g} points")
    if band.relative:
        parts.append(f"{band.relative * 1e6:g} ppm" if band.relative < 1e-3 else f"{band.relative * 100:g} %")
    return " or ".join(parts) or "no more"
