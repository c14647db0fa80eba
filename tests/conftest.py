"""For all tests: Hypothesis without deadline and pace, which a busy machine would miss; Ctrl-C does what it does."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("testbed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("testbed")

# a suite that was begun in the background of a shell ignores it, and so would every process that a test interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
