"""Adaptation: a job that watches its own times, notices that network or ranks have changed, and swaps its schedule."""
