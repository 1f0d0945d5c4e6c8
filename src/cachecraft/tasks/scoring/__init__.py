"""The metrics of published benchmarks, each from 0 to 1, from their definitions and without the original's packages."""
