"""Faults put in on purpose, for demonstrations and tests: what goes wrong on which rank, and where it acts."""
