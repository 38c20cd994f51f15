"""Two runs, or two windows of one: what got slower, and where."""
