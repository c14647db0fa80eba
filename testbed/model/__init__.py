"""The model: what a schedule takes, simulated and in closed form."""
