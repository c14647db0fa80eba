"""The results directory of a run: writing, reading, and pictures drawn from its files."""
