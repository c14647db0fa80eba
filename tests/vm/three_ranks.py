"""A small plan, of three ranks in two datacenters, and the tables in which two runs of it are held byte for byte."""

from __future__ import annotations

COMPARED = ("actions.parquet", "messages.parquet", "iterations.parquet")
TOPOLOGY = """
name: pair
datacenters: {east: {nodes: 1}, west: {nodes: 2}}
links: [{between: [east, west], delay: 3 ms, rate: 1 Gbit/s}]
"""
WORKLOAD = """
name: three
model: {layers: 3, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 3}
microbatches: 3
microbatch_size: 1
pacing: {F: 7 ms, I: 9 ms, W: 5 ms}
message: 37 kB
iterations: 2
warmup: 1
schedules: [zb-h1]
"""
