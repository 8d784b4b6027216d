"""The work as what flgo calls a benchmark: it imports `core` of this by name."""
