"""What the trainer reads: texts and token files, and the batches that are drawn from them."""
