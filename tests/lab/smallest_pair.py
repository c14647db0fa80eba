"""The smallest plan: two ranks in two datacenters."""

from __future__ import annotations

TOPOLOGY = """
name: pair
datacenters: {east: {nodes: 1}, west: {nodes: 1}}
links: [{between: [east, west], delay: 3 ms, rate: 1 Gbit/s}]
"""
WORKLOAD = """
name: two
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2}
microbatches: 2
microbatch_size: 1
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
message: 10 kB
iterations: 3
warmup: 1
schedules: [1f1b]
"""
