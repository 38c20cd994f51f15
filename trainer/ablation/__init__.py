"""What each of the trainer's techniques does to its speed on this machine, measured in interleaved pairs."""
