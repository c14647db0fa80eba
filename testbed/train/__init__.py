"""Training for real: stages, engine, workers."""
