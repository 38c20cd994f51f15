"""Model FLOP/s utilization over time, and what explains its decline."""
