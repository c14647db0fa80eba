"""A relay whose links are measured once, and once more where that was off: --shaper tests/lab/measured_once.py:Relay.

For runs of which a test asks what becomes of them, trusted or not. Beside other tests the links of a run are hardly
ever as asked: each would be measured six times, with a wait for quiet that does not come. That is in test_gate.py and
test_broken_labs.py.
"""

from __future__ import annotations

from testbed.lab import calibrate, gate
from testbed.lab.shaping.relay import RelayShaper

calibrate.ATTEMPTS = 1  # type: ignore[attr-defined]
gate.QUIET_LIMIT_S = 0.0  # type: ignore[attr-defined]


class Relay(RelayShaper):
    """As it is."""
