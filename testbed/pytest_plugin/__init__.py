"""Fixtures for pytest: labs, predictions, trainings and baselines in the tests of another repository."""
