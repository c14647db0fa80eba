"""When everything happened: one set of tables for what is predicted and what is measured, and one summary."""
