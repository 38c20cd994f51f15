"""Rollups: windows of steps with histograms, from spans as they arrive."""
