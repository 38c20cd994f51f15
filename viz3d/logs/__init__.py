"""Job logs: what the NCCL watchdog, NCCL itself and dying ranks wrote."""
