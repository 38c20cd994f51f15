"""Questions over the whole raw archive, answered by DuckDB on one machine or by a Spark cluster."""
