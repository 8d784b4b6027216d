"""One method on one federation: the round, what it records, and the run folder."""
