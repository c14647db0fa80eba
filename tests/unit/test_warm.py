"""`make setup` compiles everything: no command that follows has to."""

from __future__ import annotations

import subprocess
import sys

COMPILED = """
from testbed.schedule.compile_all import warm
warm()
from testbed.model.compiled import EVENT_MODEL
from testbed.schedule import greedy_compiled
from testbed.search import list_compiled, local_search
called = [EVENT_MODEL.execute, local_search.MOVES.climb, greedy_compiled.greedy]
print(*(one.__name__ for one in [*called, list_compiled.run] if not one.signatures))
"""


def test_what_is_called_from_python_is_compiled_by_set_up() -> None:
    """In a process of its own, where nothing else has called it."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == []
