"""Clocks of several hosts: differences, lines through them, and offsets with their uncertainty."""
