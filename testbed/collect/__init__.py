"""What happened: measured timelines, comparison with the model, results, pictures."""
