"""PyTorch Flight Recorder dumps: reading them, and what they tell of each rank."""
