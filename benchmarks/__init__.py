"""Speed: cudt against its peers, as ratios (`python -m benchmarks`, or `make bench`)."""
