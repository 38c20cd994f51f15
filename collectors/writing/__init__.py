"""Writing into a store: files are staged, and made valid all at once by the writer's next manifest."""
