"""The Heatmap's data."""
