"""The event model compiled: the same functions as execute.py and network.py, as machine code. Slow to import."""

from __future__ import annotations

from testbed.model import execute as execute_module
from testbed.model import network, program
from testbed.model.compile import compiled_modules

EVENT_MODEL = compiled_modules([program, network, execute_module])
"""For modules whose compiled functions run programs."""

execute = EVENT_MODEL.execute
last_end = EVENT_MODEL.last_end
