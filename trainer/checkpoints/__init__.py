"""Checkpoints: staged to the host, written beside training, loaded under any layout."""
