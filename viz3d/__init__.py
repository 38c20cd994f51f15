"""Who is stuck: the dependency graph over the topology, hang verdicts, and the 3D figure."""
