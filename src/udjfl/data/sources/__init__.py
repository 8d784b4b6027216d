"""The built-in data sources, one module each."""
