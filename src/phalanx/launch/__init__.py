"""Start ranks, and let them find each other."""
