"""A grid of plans, measured or predicted, with claims that are judged: studies and sweeps."""
