"""Many plans in a row: rates of a link, shapes of a microbatch, axes over a link; predicted, some measured, drawn."""
