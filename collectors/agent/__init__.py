"""The agent of a host: its turns, and what it does beside draining."""
