"""What the tables of a store are: columns, types, versions, and how rows become a Parquet file."""
