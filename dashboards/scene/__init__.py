"""The 3D page's data: ranks, waits, history."""
