"""For all tests: Hypothesis sets no deadline and no pace, which a busy machine or a first compilation would miss."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("testbed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("testbed")
