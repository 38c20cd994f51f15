"""Other tools' traces and logs, made into a store."""
