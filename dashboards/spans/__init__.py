"""The Timeline's spans, their links and the critical path."""
