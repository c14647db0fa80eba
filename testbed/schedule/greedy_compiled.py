"""The greedy's loop as machine code: greedy_loop.py compiled. Slow to import."""

from __future__ import annotations

from testbed.model.compile import compiled_modules
from testbed.schedule import greedy_loop
from testbed.search import blocks

GREEDY_LOOP = compiled_modules([greedy_loop, blocks])

greedy = GREEDY_LOOP.greedy
