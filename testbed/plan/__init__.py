"""A plan as a value: who is where, which routes data takes, what everything costs, the network at a moment."""
