"""What an agent shows to Prometheus: numbers of the last turn, behind a port, without a look into boxes or store."""
