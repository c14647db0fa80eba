"""The event model compiled: the same functions as execute.py and network.py, as machine code. Slow to import."""

from __future__ import annotations

from testbed.model import crossing, network, pieces_in_rows, program, state, tensor_exchange
from testbed.model import execute as execute_module
from testbed.model.compile import compiled_modules
from testbed.model.simulate import makespan as seconds
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem

_MODULES = (execute_module, tensor_exchange, crossing, pieces_in_rows, state, network, program)

EVENT_MODEL = compiled_modules(_MODULES, announced="the event model: about 12 s")
"""For modules whose compiled functions run programs."""

execute = EVENT_MODEL.execute


def makespan(problem: Problem, schedule: Schedule) -> float:
    """As `simulate.makespan`, for searches that judge many schedules, however small."""
    return seconds(problem, schedule, compiled=True)
