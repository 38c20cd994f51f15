"""Checks of an installation and of the machine it is on, each a function that gives a finding and changes nothing."""
