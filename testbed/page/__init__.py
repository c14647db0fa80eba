"""A run's report as one web page that needs no network: drawn from the files of a run, several of them side by side."""
