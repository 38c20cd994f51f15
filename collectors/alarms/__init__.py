"""Alarms: what one is, who is told, and telling it again until it is told."""
