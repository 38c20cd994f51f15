"""Benchmarks: `python -m benchmarks.NAME` prints one JSON object, with the machine in it."""
