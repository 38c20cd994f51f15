"""Traces in the format that ByteDance published with its what-if analysis."""
