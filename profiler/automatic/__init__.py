"""What is recorded without a line of code."""
