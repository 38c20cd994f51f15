"""Incidents: noticed while a job runs, with stacks, dumps, a verdict and what else is done about them."""
