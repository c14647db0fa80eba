"""A network-emulation testbed for cross-datacenter LLM training."""

__version__ = "0.1.0"
