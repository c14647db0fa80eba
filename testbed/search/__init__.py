"""Orders found by search: list scheduling, local search, the CP model. It knows nothing of families of schedules."""
