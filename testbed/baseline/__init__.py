"""Baselines: plans that were measured and kept, so that a later version of the testbed can be held against them."""
