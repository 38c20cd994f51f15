"""What ranks leave in a spool, turned into rows on their way to the store."""
