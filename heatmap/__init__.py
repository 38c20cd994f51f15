"""Who is slow: peers, matrices, verdicts, and the heatmap figure."""
