"""Many attempts together: hosts that are accused again and again, and what the slow ones cost week by week."""
