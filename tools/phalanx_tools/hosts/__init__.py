"""Several hosts on one machine, for tests, benchmarks and trying things out: see bed.py."""
