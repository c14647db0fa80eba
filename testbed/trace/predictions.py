"""Which predicted iteration a measured one is compared with: its own.

A predicted trace has as many iterations as differ. Each stands for the measured iterations from its number on, up to
the next predicted one: of a network that does not change, the only one (number 0) stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.trace.summary import Summary, summaries
from testbed.trace.tables import Trace, concatenate


def predicted_numbers(predicted: Trace, iterations: Sequence[int]) -> NDArray[np.int32]:
    """Per measured iteration, the number of the predicted one that stands for it.

    Raises ValueError for an iteration before the first predicted one.
    """
    numbers = predicted.iterations()
    places = np.searchsorted(numbers, iterations, side="right") - 1
    if (places < 0).any():
        raise ValueError(f"iteration {min(iterations)} is before the first predicted one, {numbers[0]}")
    found: NDArray[np.int32] = numbers[places]
    return found


def prediction_of(predicted: Trace, iteration: int) -> Trace:
    """What is predicted of a measured iteration. Raises ValueError as `predicted_numbers`."""
    return predicted.of_iteration(int(predicted_numbers(predicted, [iteration])[0]))


def predictions_of(predicted: Trace, iterations: Sequence[int]) -> Trace:
    """What is predicted of each of these measured iterations, with their numbers; the only one where all are alike.

    Raises ValueError as `predicted_numbers`.
    """
    numbers = predicted_numbers(predicted, iterations).tolist()
    if len(set(numbers)) == 1:
        return predicted.of_iteration(numbers[0])
    parts = []
    for iteration, number in zip(iterations, numbers, strict=True):
        own = predicted.of_iteration(number)
        parts.append(Trace(own.actions.copy(), own.messages.copy(), own.n_ranks))
        parts[-1].actions["iteration"] = parts[-1].messages["iteration"] = iteration
    return concatenate(parts)


def predicted_times_s(predicted: Trace, iterations: Sequence[int]) -> NDArray[np.float64]:
    """Per measured iteration, the seconds that it should take. Raises ValueError as `predicted_numbers`."""
    places = np.searchsorted(predicted.iterations(), predicted_numbers(predicted, iterations))
    found: NDArray[np.float64] = predicted.makespans()[places]
    return found


def predicted_summary(predicted: Trace, iterations: Sequence[int], *, mean: bool = False) -> Summary:
    """What is predicted of measured iterations together: medians, or the mean of times and bubbles, and the most in
    flight.

    Raises ValueError as `predicted_numbers`.
    """
    of = dict(zip(predicted.iterations().tolist(), summaries(predicted), strict=True))
    each = [of[number] for number in predicted_numbers(predicted, iterations).tolist()]
    of_all = np.mean if mean else np.median
    return Summary(
        float(of_all([prediction.makespan_s for prediction in each])),
        float(of_all([prediction.bubble_ratio for prediction in each])),
        tuple(max(peaks) for peaks in zip(*(prediction.peaks for prediction in each), strict=True)),
    )
