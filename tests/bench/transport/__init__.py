"""What the transport is worth, in whole workers on a real Redis: `python -m tests.bench.transport`, or `make bench`."""
