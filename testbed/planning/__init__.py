"""Making plans: from topology and workloads, from plan.json, their schedules, and what the model predicts of them."""
