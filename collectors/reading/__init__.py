"""Opening a store and asking it: attempts, DuckDB views, older versions, fenced SQL."""
