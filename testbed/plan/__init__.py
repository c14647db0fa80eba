"""A plan: topology and workloads resolved into who is where, what everything costs, and which way it goes."""
