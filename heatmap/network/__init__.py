"""Slow links and groups: transfers apart from waiting, lateness at each collective, and who is late first."""
