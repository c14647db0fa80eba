"""The same commands inside User-Mode Linux: real netem on any machine, and the virtual clock."""
