"""What the job would take with every operation at its ideal: S, M_W, M_S, and whose fault the rest is."""
