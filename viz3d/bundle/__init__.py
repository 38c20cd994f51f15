"""One file to attach to an incident: written, and read again."""
