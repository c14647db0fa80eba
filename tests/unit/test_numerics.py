"""Losses and gradients of a run against one process's: what is believed, and what is not."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from testbed.judge.fidelity import Check
from testbed.judge.iterations import IterationRow
from testbed.judge.numerics import as_document, count_check, gradient_check, loss_check, worst_difference
from testbed.judge.parameter_checks import parameter_checks, put_together
from testbed.thresholds import COMPARED_ITERATIONS, GRADIENT_DIFFERENCE, LOSS_DIFFERENCE
from testbed.train.assignment import (
    AFTER_STEP,
    ALL,
    GRADIENT,
    IN_USE,
    PROJECTIONS,
    Expected,
    Fingerprint,
    ReferenceOutcome,
)

REFERENCE = ReferenceOutcome((5.0, 4.0), ((1.0, 2.0), (0.5, 0.25)), 1.5)


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


def test_what_rounding_does_to_one_process_is_no_fault_of_a_run_but_hides_nothing_large() -> None:
    touchy = replace(REFERENCE, loss_rounding=5e-6, norm_rounding=4e-3)
    losses, norms = (5.0, 4.0 * (1 + 4e-5)), ((1.0, 2.0), (0.5, 0.25 * 1.03))
    assert not loss_check(losses, REFERENCE).ok
    assert loss_check(losses, touchy).ok
    assert not loss_check([5.0, 4.0 * (1 + 6e-5)], touchy).ok
    assert not gradient_check(rows(losses, norms), REFERENCE).ok
    assert gradient_check(rows(losses, norms), touchy).ok
    chaotic = replace(REFERENCE, loss_rounding=0.1, norm_rounding=3.0)
    assert not loss_check([5.0, 4.0 * (1 + 2e-3)], chaotic).ok
    assert not gradient_check(rows(losses, ((1.0, 2.0), (0.5, 0.3))), chaotic).ok


def test_a_reference_that_diverged_or_is_missing_clears_nobody() -> None:
    assert not loss_check([5.0, 4.0], ReferenceOutcome((5.0, math.nan))).ok
    (found,) = loss_check([5.0, 4.0], ReferenceOutcome(refused="it took too long")).reasons
    assert "it took too long" in found
    assert loss_check([0.0], ReferenceOutcome((0.0,))).ok
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
    reference = ReferenceOutcome((1.0,) * count, ((1.0,),) * count)
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
        ReferenceOutcome((5.0, math.nan), ((1.0,), (math.nan,))), {"1f1b": rows((5.0, 4.0), ((1.0,), (1.0,)))}
    )
    assert document["reference_losses"] == [5.0, None]
    assert document["worst"] == {"1f1b": {"loss": None, "gradient_norm": None}}


SAID = Fingerprint(0, GRADIENT, "0.weight", 0, 0, 4, 4.0, (1.0,) * PROJECTIONS)
EXPECTED = Expected(0, GRADIENT, "0.weight", 4, 4.0, (1.0,) * PROJECTIONS, 2.0, 1e-9, 0.0)
STEPPED = [(0, AFTER_STEP), (1, IN_USE), (1, AFTER_STEP)]


def told(*gradients: Fingerprint, weights: Fingerprint = SAID) -> list[Check]:
    """The checks of these gradients and weights, where one process has `EXPECTED` for all of them."""
    ours = [weights._replace(iteration=iteration, what=what) for iteration, what in STEPPED]
    theirs = [EXPECTED._replace(iteration=iteration, what=what) for iteration, what in STEPPED]
    reference = ReferenceOutcome((1.0,), ((1.0,),), parameters=(EXPECTED, *theirs))
    return parameter_checks([*gradients, *ours], reference, [1])


def test_parts_of_a_parameter_add_up() -> None:
    half = SAID._replace(replica=ALL, elements=2, square=2.0, projections=(0.5,) * PROJECTIONS)
    whole = put_together([SimpleNamespace(fingerprints=(half,)), SimpleNamespace(fingerprints=(half,))])  # type: ignore[list-item]
    assert whole == [SAID._replace(replica=ALL)]
    assert all(check.ok for check in told(*whole))
    assert not told(half)[0].ok, "a shard that nobody keeps"


@pytest.mark.parametrize(
    "wrong",
    [
        SAID._replace(projections=(1.0 + 1e-3,) * PROJECTIONS),
        SAID._replace(projections=(math.nan,) * PROJECTIONS),
        SAID._replace(projections=()),
        SAID._replace(elements=3),
        SAID._replace(parameter="1.weight"),
    ],
)
def test_a_gradient_that_is_off_missing_or_no_number_is_not_believed(wrong: Fingerprint) -> None:
    gradients, weights = told(wrong)
    assert not gradients.ok
    assert weights.ok


def test_the_copy_of_one_replica_counts_for_itself() -> None:
    other = SAID._replace(replica=1, projections=(2.0,) * PROJECTIONS)
    (reason,) = told(SAID, other)[0].reasons
    assert "1 of 2 gradients" in reason
    assert "replica 1" in reason


def test_weights_that_are_longer_than_chance_makes_them_are_not_believed() -> None:
    """What weight decay does to a weight hardly shows in a projection of it."""
    assert not told(SAID, weights=SAID._replace(square=4.0 * 1.01**2))[1].ok
    assert told(SAID, weights=SAID._replace(square=4.0 * 1.0001**2))[1].ok


def test_what_one_process_cannot_repeat_itself_is_no_fault() -> None:
    vague = EXPECTED._replace(rounding=0.1)
    off = SAID._replace(projections=(1.1,) * PROJECTIONS)
    (check, _) = parameter_checks([off], ReferenceOutcome((1.0,), ((1.0,),), parameters=(vague,)), [1])
    assert check.ok


def test_earlier_runs_are_not_asked_for_what_they_did_not_tell() -> None:
    assert parameter_checks([], ReferenceOutcome((1.0,), ((1.0,),)), [1]) == []
    assert not any(check.ok for check in parameter_checks([], ReferenceOutcome(parameters=()), [1]))
