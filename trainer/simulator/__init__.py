"""The trainer's twin: a fleet simulator that walks the same schedule with a clock."""
