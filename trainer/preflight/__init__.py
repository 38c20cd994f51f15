"""Checks of the machines before a job: compute, memory, links, storage, clocks and ports."""
