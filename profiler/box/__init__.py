"""The black box of a rank and its metadata: format, reader, and what is written on the hot path."""
