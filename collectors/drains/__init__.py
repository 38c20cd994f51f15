"""Draining a host: all attempts of a run, and one attempt with its ranks, heartbeats and tables."""
