"""A plan as a value: who is where, which way data goes, what everything costs, the network at a moment."""
