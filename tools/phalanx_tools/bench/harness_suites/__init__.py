"""The same trivial test, many times, for every harness: make a group, add up ones, look at the sum.

Each module is a program: `python -m ... RANKS TESTS` runs the suite and prints a line of JSON.
"""
