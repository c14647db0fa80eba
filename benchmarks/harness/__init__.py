"""What benchmarks share: options, plans in boots of the virtual clock, judged rows, tables and figure records.

CONTRIBUTING.md says how a benchmark is written on it.
"""
