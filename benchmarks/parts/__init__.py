"""What single benchmarks are made of, and their tests take: cases, changes, and a second model; no programs."""
