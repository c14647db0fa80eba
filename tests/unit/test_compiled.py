"""The compiled event model and greedy against their readable definitions, and the decomposition of time."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import QUICK, in_packets, quick, with_collectives
from numba import typeof

from testbed.model import compiled, machine_code, network
from testbed.model.bubble import time_by_cause
from testbed.model.compile import cache_directory, compiled_modules
from testbed.model.compiled import EVENT_MODEL
from testbed.model.execute import last_end
from testbed.model.frames import message_number
from testbed.model.lower import Load, lower
from testbed.model.machine_code import prune
from testbed.model.program import NONE, Program
from testbed.model.schedule_model import ScheduleModel
from testbed.model.simulate import COMPILED, DeadlockError, compile_for, jobs_in_ticks, makespan, run, simulate
from testbed.pipeline.action_columns import columns, rows_of
from testbed.pipeline.depend import consumed, produced
from testbed.pipeline.ir import Schedule, parse_action
from testbed.pipeline.link import LinkCost, Stream, StreamSpan
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, Receives, Transfer, uniform
from testbed.pipeline.ticks import in_ticks
from testbed.pipeline.validate import validate
from testbed.schedule import greedy, greedy_compiled
from testbed.schedule.greedy import greedy_actions, greedy_rows
from testbed.schedule.greedy_compiled import GREEDY_LOOP
from testbed.schedule.registry import FAMILIES, generate
from testbed.schedule.search_families import search
from testbed.search.list_compiled import LIST_LOOP
from testbed.search.local_search import MOVES

small = st.integers(0, 6)


def test_machine_code_that_was_used_last_is_kept(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"version{number}" / "model").mkdir(parents=True)
        os.utime(tmp_path / f"version{number}", (number, number))
    os.utime(tmp_path / "version0")  # old, and used again
    prune(tmp_path, kept=2)
    assert {path.name for path in tmp_path.iterdir()} == {"version0", "version4"}


def test_new_sources_get_a_directory_of_their_own_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caches = tmp_path / "testbed/compiled"
    for number in range(machine_code.KEPT):
        (caches / f"version{number}").mkdir(parents=True)
        os.utime(caches / f"version{number}", (number, number))
    mine = cache_directory([network])
    assert mine is not None
    assert mine.is_dir()
    names = {path.name for path in caches.iterdir()}
    assert names == {mine.name, *(f"version{number}" for number in range(1, machine_code.KEPT))}
    os.utime(mine, (0, 0))
    assert cache_directory([network]) == mine
    assert mine.stat().st_mtime > 0, "it does not say that it was used"


ADDING = "COMPILED = ('add',)\nfrom other import ONE\ndef add(x):\n    return x + ONE\n"


def test_machine_code_is_of_what_it_was_made_from_and_of_no_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one cache, imported anew each time: what numba says it compiled, and what that gives."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of a source as long and as old as the next one
    monkeypatch.syspath_prepend(tmp_path)

    def added(source: str, one: int) -> tuple[int, bool]:
        (tmp_path / "adding.py").write_text(source)
        (tmp_path / "other.py").write_text(f"ONE = {one}\n")
        for name in ("adding", "other"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        add = compiled_modules([importlib.import_module("adding")]).add
        return add(1), bool(sum(add.stats.cache_misses.values()))

    assert added(ADDING, 1) == (2, True)
    commented = ADDING.replace("def add(x):\n", '# how to add\n\ndef add(x):\n    """One more."""\n')
    assert added(commented, 1) == (2, False)
    assert added(ADDING, 2) == (3, True)
    assert added(ADDING.replace("+", "-"), 2) == (-1, True)


def test_compiled_functions_take_types_and_constants_from_what_is_hashed() -> None:
    """A module that is not may only lend constants, which are hashed too, and functions of the same name, compiled."""
    for functions in (EVENT_MODEL, MOVES, LIST_LOOP, GREEDY_LOOP):
        modules = functions.modules_compiled
        for module in modules:
            for name in {name for made in module.COMPILED for name in getattr(module, made).__code__.co_names}:
                value = vars(module).get(name)
                if isinstance(value, (FunctionType, type)):
                    assert value.__module__ in {each.__name__ for each in modules}, (module.__name__, name)


def checked_against_depend(problem: Problem, schedule: Schedule, program: Program) -> bool:
    """Whether `needs` and `makes` say what depend.py says: the one definition stays the one definition."""
    m = schedule.n_microbatches
    for index, (_, action) in enumerate(schedule.actions()):
        need, make = consumed(action, problem.n_stages), produced(action, problem.n_stages)
        if program.needs[index] != (NONE if need is None else message_number(need, m)):
            return False
        if program.makes[index] != (NONE if make is None else message_number(make, m)):
            return False
    return True


@st.composite
def problems(draw: st.DrawFn, placement: Placement = Placement.UD) -> Problem:
    p, m = draw(st.integers(1, 5)), draw(st.integers(1, 10))
    problem = uniform(
        p,
        m,
        forward_s=draw(st.integers(1, 6)),
        input_s=draw(small),
        weight_s=draw(small),
        delay_s=draw(small),
        wire_s=draw(small),
        cuts=tuple(range(draw(st.integers(0, 1)), p - 1)),
        memory=float(2 * max(p, m)),
        stage_to_rank=stage_to_rank(placement, p),
    )
    return draw(with_collectives(problem))


@given(st.data(), st.sampled_from(QUICK), st.sampled_from(get_args(Receives)))
@settings(max_examples=60)
def test_the_compiled_model_is_the_model(data: st.DataObject, name: str, receives: Receives) -> None:
    problem = data.draw(in_packets(data.draw(problems(FAMILIES[name].placement))))  # type: ignore[arg-type]
    schedule = quick(name, problem)
    tick, counted = jobs_in_ticks([Load(problem, schedule, 0.0, receives)])  # what meets there meets in both
    program, _ = lower(counted)
    assert checked_against_depend(counted[0].problem, schedule, program)
    interpreted, compiled = run(program, compiled=False), run(program, compiled=True)
    for plain, fast in zip(interpreted, compiled, strict=True):
        assert np.array_equal(plain, fast, equal_nan=True)
    simulated = simulate(problem, schedule, receives=receives)
    assert tick * last_end(program, compiled) == pytest.approx(simulated.makespans()[0], rel=1e-8)


def test_a_program_has_the_same_types_whatever_its_problem_counts_in() -> None:
    """For other types machine code is made anew, which takes 20 s, and in guests each time, as they keep none."""
    first, schedule = uniform(2, 2, delay_s=2.0, wire_s=0.5), quick("1f1b", uniform(2, 2))
    numbers = {field.name: 0 for field in fields(first) if isinstance(getattr(first, field.name), float)}
    assert {"handover_s", "wake_s", "unnoticed_wait_s"} <= numbers.keys()
    whole = replace(first, **numbers, exchange_notice=Transfer(66, 54), links=tuple(_whole(first.links)))  # type: ignore[arg-type]
    programs = (lower([Load(problem, schedule, 0, "early")])[0] for problem in (first, whole))
    wanted, got = map(typeof, programs)
    assert got == wanted


def _whole(links: Iterable[LinkCost]) -> Iterator[LinkCost]:
    """Links that count in whole numbers too."""
    return (link._replace(delay_s=int(link.delay_s), seconds_per_byte=0) for link in links)


@given(problems(), st.integers(1, 5), st.integers(0, 20))
@settings(max_examples=60)
def test_the_compiled_greedy_is_the_greedy(problem: Problem, n_sub: int, spare: int) -> None:
    tight = in_ticks(problem.with_memory(1 + spare / 4))
    rows = greedy_rows(tight, n_sub)
    assert rows == greedy_rows(tight, n_sub, compiled=False)
    validate(Schedule("greedy", rows, problem.stage_to_rank, problem.n_microbatches), tight)


@given(st.data())
@settings(max_examples=25)
def test_a_problem_lowered_once_takes_what_it_takes_lowered_for_each_schedule(data: st.DataObject) -> None:
    problem = data.draw(in_packets(data.draw(problems())))
    fixed = ["1f1b", "zb-h1", "gpipe", "crosspipe-greedy"]
    first, second = (quick(data.draw(st.sampled_from(fixed)), problem) for _ in range(2))
    model = ScheduleModel(problem, first)
    assert [model.makespan(one) for one in (second, first)] == [makespan(problem, one) for one in (second, first)]


@given(problems(), st.integers(1, 5))
@settings(max_examples=25)
def test_rows_have_the_columns_that_they_are_made_of(problem: Problem, n_sub: int) -> None:
    actions = greedy_actions(in_ticks(problem), n_sub)
    for made, read in zip(actions, columns(rows_of(actions)), strict=True):
        assert made.tolist() == read.tolist()


def test_a_user_without_home_predicts_without_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setitem(sys.modules, COMPILED, None)  # an import of it would fail
    compile_for(1_000_000)
    with pytest.raises(ImportError):
        compile_for(10_000_000)


def test_small_programs_are_compiled_once_they_have_taken_as_long_as_the_import() -> None:
    """A controller predicts some hundred small ones in every iteration."""
    code = (
        "import sys\n"
        "from testbed.model.simulate import COMPILED, makespan\n"
        "from testbed.pipeline.problem import uniform\n"
        "from testbed.schedule.one_f_one_b import one_f_one_b\n"
        "problem, found = uniform(4, 8, delay_s=2.0, wire_s=0.5), []\n"
        "while COMPILED not in sys.modules and len(found) < 2000:\n"
        "    found.append(makespan(problem, one_f_one_b(problem)))\n"
        "found.append(makespan(problem, one_f_one_b(problem)))\n"
        "print(len(found), len(set(found)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250)
    many, different = map(int, done.stdout.split())
    assert 20 < many < 2000
    assert different == 1


def test_small_greedies_are_compiled_where_the_event_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they have taken as long together as the machine code takes to load; by themselves never."""
    loop, calls = greedy_compiled.greedy, []

    def noted(*asked: Any) -> Any:
        calls.append(asked)
        return loop(*asked)

    monkeypatch.setattr(greedy_compiled, "greedy", noted)
    monkeypatch.setattr(greedy, "_SO_FAR", greedy._SmallOnes())
    monkeypatch.setitem(sys.modules, COMPILED, compiled)
    problem, size = uniform(4, 8, delay_s=2.0, cuts=(1,)), 4 * 8 * greedy.DEFAULT_SUB_BLOCKS
    found = {greedy.crosspipe_greedy(problem).rows for _ in range(greedy.LARGE // size)}
    assert not calls
    found.add(greedy.crosspipe_greedy(problem).rows)
    assert (len(calls), len(found)) == (1, 1)
    monkeypatch.delitem(sys.modules, COMPILED)
    greedy.crosspipe_greedy(problem)
    assert len(calls) == 1


def test_a_circular_wait_is_noticed() -> None:
    rows = tuple(tuple(map(parse_action, row.split())) for row in ("0B0 0F0", "1F0 1B0"))
    with pytest.raises(DeadlockError):
        makespan(uniform(2, 1), Schedule("hand-made", rows, (0, 1), 1))


@given(problems())
@settings(max_examples=6)
def test_search_is_valid_repeatable_and_never_worse_than_the_greedy(problem: Problem) -> None:
    tight = problem.with_memory(float(problem.n_ranks))
    found = search(tight, evaluations=30)
    validate(found, tight)
    assert found == search(tight, evaluations=30)
    assert makespan(tight, found) <= makespan(tight, generate("crosspipe-greedy", tight))


def test_search_finds_what_the_greedy_misses() -> None:
    problem = uniform(8, 16, delay_s=2, wire_s=0.25, cuts=(3,), memory=8)
    assert makespan(problem, search(problem)) <= 0.98 * makespan(problem, generate("crosspipe-greedy", problem))


@given(problems(), st.sampled_from(["gpipe", "1f1b", "zb-h1"]))
@settings(max_examples=30)
def test_causes_add_up_to_the_makespan(problem: Problem, name: str) -> None:
    schedule = generate(name, problem)
    causes = time_by_cause(problem, schedule)
    assert causes.makespan_s == pytest.approx(makespan(problem, schedule))
    assert min(causes.imbalance_s, causes.fill_s, causes.latency_s, causes.wire_s, causes.queueing_s) >= -1e-9


def test_causes_are_told_apart() -> None:
    plain = uniform(4, 8)
    assert time_by_cause(plain, generate("1f1b", plain)).latency_s == 0
    delayed = uniform(4, 8, delay_s=3, cuts=(1,))
    causes = time_by_cause(delayed, generate("1f1b", delayed))
    assert (causes.latency_s, causes.wire_s, causes.queueing_s, causes.imbalance_s) == (24, 0, 0, 0)
    congested = uniform(4, 8, wire_s=5, cuts=(1,), memory=8)
    assert time_by_cause(congested, generate("gpipe", congested)).queueing_s > 0
    # traffic of others is on the links that there are: with links of ranks' own it was on any of these, or on none
    spans = (StreamSpan(0.5, 2, math.inf),)
    for crossed in ((0, 1), (0, 8)):
        beside = replace(congested, streams=(Stream(crossed, 0.1, spans),), links=(congested.links[0],) * 9)
        causes, without = (time_by_cause(one, generate("gpipe", congested)) for one in (beside, congested))
        assert causes._replace(queueing_s=0) == without._replace(queueing_s=0)
        assert causes.queueing_s > without.queueing_s
    uneven = replace(plain, forward_s=(1, 1, 1, 3))
    assert time_by_cause(uneven, generate("1f1b", uneven)).imbalance_s == pytest.approx(12)
