"""Results for people: tables."""
