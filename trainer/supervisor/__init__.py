"""The supervisor: keeps a training job going through faults of its processes, hosts, network and storage."""
