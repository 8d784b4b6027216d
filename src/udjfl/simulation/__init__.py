"""Clients in this process: one run, several in lockstep, and comparisons over seeds."""
