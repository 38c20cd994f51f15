"""How often the analysers are right: trials with known faults."""
