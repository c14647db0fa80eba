"""Routing: which of several routes each flow takes, by policies, and how good a choice is by one metric."""
