"""Speed benches: `python -m benchmarks.speed` (or `make bench`) compares cudt with peers, as
ratios.
"""
