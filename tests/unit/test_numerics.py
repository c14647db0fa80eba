"""Losses and gradients of a run against one process's: what is believed, and what is not."""

from __future__ import annotations

import math

import pytest

from testbed.judge.iterations import IterationRow
from testbed.judge.numerics import as_document, count_check, gradient_check, loss_check, worst_difference
from testbed.thresholds import COMPARED_ITERATIONS, GRADIENT_DIFFERENCE, LOSS_DIFFERENCE
from testbed.train.job import Reference

REFERENCE = Reference((5.0, 4.0), ((1.0, 2.0), (0.5, 0.25)), 1.5)


def rows(losses: tuple[float, ...], norms: tuple[tuple[float, ...], ...]) -> list[IterationRow]:
    blank = IterationRow(0, False, 1.0, 0.4, 5.0, (4.0,), (4.0,), 0, 0.0, 96, 0.0)
    both = zip(losses, norms, strict=True)
    return [blank._replace(iteration=i, loss=loss, gradient_norms=norm) for i, (loss, norm) in enumerate(both)]


def test_what_rounding_gives_is_believed() -> None:
    assert loss_check([5.0, 4.0 * (1 + 0.5 * LOSS_DIFFERENCE.value)], REFERENCE).ok
    close = ((1.0, 2.0), (0.5 * (1 + 0.5 * GRADIENT_DIFFERENCE.value), 0.25))
    assert gradient_check(rows((5.0, 4.0), close), REFERENCE).ok


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([5.0, 4.0 * (1 + 2 * LOSS_DIFFERENCE.value)], "differ from those of one process"),
        ([5.0, math.nan], "the loss of iteration 1 is nan"),
        ([math.inf, 4.0], "the loss of iteration 0 is inf"),
        ([5.0], "differ from those of one process"),
    ],
)
def test_what_is_not_believed_even_of_a_single_schedule(losses: list[float], reason: str) -> None:
    (found,) = loss_check(losses, REFERENCE).reasons
    assert reason in found


def test_a_reference_that_diverged_or_is_missing_clears_nobody() -> None:
    assert not loss_check([5.0, 4.0], Reference((5.0, math.nan))).ok
    (found,) = loss_check([5.0, 4.0], Reference(refused="it took too long")).reasons
    assert "it took too long" in found
    assert loss_check([0.0], Reference((0.0,))).ok
    assert worst_difference([], []) == math.inf


@pytest.mark.parametrize(
    "norms",
    [
        ((1.0, 2.0), (0.5, 0.5)),  # doubled
        ((1.0, 0.0), (0.5, 0.25)),  # missing
        ((1.0, 2.0), (0.5,)),
        ((1.0, math.nan), (0.5, 0.25)),
    ],
)
def test_gradients_that_losses_do_not_show(norms: tuple[tuple[float, ...], ...]) -> None:
    (found,) = gradient_check(rows((5.0, 4.0), norms), REFERENCE).reasons
    assert "gradients" in found


def test_after_the_compared_iterations_losses_must_be_finite_only() -> None:
    """Rounding that has grown for long says nothing; what is not a number does."""
    count = COMPARED_ITERATIONS
    reference = Reference((1.0,) * count, ((1.0,),) * count)
    assert loss_check([1.0] * count + [2.0], reference).ok
    assert gradient_check(rows((1.0,) * (count + 1), (*reference.gradient_norms, (2.0,))), reference).ok
    assert not loss_check([1.0] * (count - 1) + [2.0, 2.0], reference).ok
    (found,) = loss_check([1.0] * count + [math.nan], reference).reasons
    assert f"iteration {count}" in found


@pytest.mark.parametrize(("measured", "trusted"), [(1, False), (2, False), (3, True)])
def test_one_iteration_has_no_spread(measured: int, trusted: bool) -> None:
    assert count_check(measured).ok == trusted


def test_the_document_is_json_whatever_happened() -> None:
    document = as_document(
        Reference((5.0, math.nan), ((1.0,), (math.nan,))), {"1f1b": rows((5.0, 4.0), ((1.0,), (1.0,)))}
    )
    assert document["reference_losses"] == [5.0, None]
    assert document["worst"] == {"1f1b": {"loss": None, "gradient_norm": None}}
