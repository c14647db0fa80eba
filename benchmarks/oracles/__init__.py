"""What tests and benchmarks hold the testbed against, and no command uses: formulas, and networks made at once."""
