"""Collectives and p2p operations of code that uses torch.distributed directly, as spans."""
