"""What the agent samples of GPUs, network ports and the host itself, and what is read of it again."""
