"""Benches: what the parts cost, as ratios measured within one run. Not tests; see docs/benchmarks.md."""
