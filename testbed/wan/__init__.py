"""The same workers on machines of their own, started by torchrun: a real network measured by the same collector."""
