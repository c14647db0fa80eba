"""A job at full scale and the lab that stands for it: scales, what is derived from what, and the error that is left."""
