"""The list scheduler's compiled loop, and what wave-greedy does where there are many microbatches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.model.simulate import makespan
from testbed.pipeline.ir import Action, Kind
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import uniform
from testbed.pipeline.validate import validate
from testbed.schedule import wave_greedy
from testbed.search import list_compiled, list_loop
from testbed.search.list_scheduler import Lister, forward_first, input_first, list_schedule, oldest_first
from testbed.search.order_evaluator import OrderEvaluator, coded

few = st.integers(0, 3)
placements = st.sampled_from(list(Placement))


@given(st.data(), placements, st.booleans(), st.sampled_from([0.0, 0.5, 2.0]))
@settings(max_examples=40)
def test_compiled_and_interpreted_make_one_order(
    data: st.DataObject, placement: Placement, alternate: bool, patience_s: float
) -> None:
    p, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    stages, (f, i, w, delay, wire) = stage_to_rank(placement, p), data.draw(st.tuples(*[few] * 5))
    costs = {"forward_s": f, "input_s": i, "weight_s": w, "delay_s": delay, "wire_s": wire}
    problem = uniform(p, m, memory=data.draw(st.sampled_from([1, 1.5, 3])), stage_to_rank=stages, **costs)
    if data.draw(st.booleans()):
        shares = tuple(a / 2 for a in problem.activation)
        problem = replace(problem, activation=shares, input_memory=shares)
    lister = Lister(problem)
    keys = data.draw(st.sampled_from([input_first, oldest_first, forward_first]))(len(stages), m)
    compiled = lister.order(keys, alternate=alternate, patience_s=patience_s)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(list_compiled, "run", list_loop.run)
        interpreted = lister.order(keys, alternate=alternate, patience_s=patience_s)
    assert all(map(np.array_equal, compiled, interpreted))
    schedule = lister.schedule(compiled, "list")
    validate(schedule, problem)
    assert all(map(np.array_equal, coded(schedule), compiled))
    judged = OrderEvaluator(problem, list_schedule(problem)).makespan(compiled)
    assert judged == pytest.approx(makespan(problem, schedule))


def test_the_lowest_key_starts_first() -> None:
    lister = Lister(uniform(1, 2, memory=2))
    by_kind = {
        "FFIIWW": forward_first(1, 2),
        "FIFIWW": input_first(1, 2),
        "FIWFIW": np.array([2.0, 0.0, 1.0])[None, :, None] + np.zeros((1, 3, 2)),
    }
    for kinds, keys in by_kind.items():
        row = lister.schedule(lister.order(keys), "list").rows[0]
        assert "".join(action.kind for action in row) == kinds
    assert lister.schedule(lister.order(input_first(1, 2)), "list").rows[0][0] == Action(0, Kind.F, 0)


def test_many_microbatches_take_the_rules_that_were_best_on_few(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = uniform(2, 24, delay_s=1, wire_s=0.25, stage_to_rank=stage_to_rank(Placement.WAVE, 2))
    every = wave_greedy.wave_greedy(problem)
    monkeypatch.setattr(wave_greedy, "TRIED_ACTIONS", 12 * 6)
    tried = wave_greedy.wave_greedy(problem)
    validate(tried, problem)
    assert makespan(problem, every) <= makespan(problem, tried) <= 1.02 * makespan(problem, every)
