"""Schedules: every family a generator of its own; greedy, searching and solving ones judge by the event model."""
