"""Schedules: the IR, the generators, what makes a schedule valid."""
