"""For all tests: Hypothesis sets no deadline per example, which a busy machine or a first compilation would miss."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("testbed", deadline=None)
settings.load_profile("testbed")
