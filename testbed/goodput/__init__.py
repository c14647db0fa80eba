"""What of a job's time trains what is kept, when workers fail: foretold, and beside the formulas of Young and Daly."""
