"""The list scheduler's loop as machine code: list_loop.py compiled. Slow to import."""

from __future__ import annotations

from testbed.model.compile import compiled_modules
from testbed.model.compiled import EVENT_MODEL
from testbed.schedule import list_loop

run = compiled_modules([list_loop], using=EVENT_MODEL).run
