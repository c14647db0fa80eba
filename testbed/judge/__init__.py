"""Whether a run was what it says it was, and how what was measured compares with what was predicted."""
