"""For all tests: Hypothesis without deadline and pace, which a busy machine would miss; Ctrl-C does what it does."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("testbed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("testbed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell gives it to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or nothing that tests start could be interrupted
