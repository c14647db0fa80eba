"""A session: the cases of a plan measured one after the other in one lab."""
