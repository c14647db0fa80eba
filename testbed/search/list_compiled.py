"""The list scheduler's loop as machine code: list_loop.py compiled. Slow to import."""

from __future__ import annotations

from testbed.model import network
from testbed.model.compile import compiled_modules
from testbed.search import blocks, list_loop

LIST_LOOP = compiled_modules([list_loop, blocks, network])
run = LIST_LOOP.run
