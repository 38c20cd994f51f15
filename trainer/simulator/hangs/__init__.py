"""Hangs of a simulated fleet: their causes, how they spread, and what they leave in the tables."""
