"""Jobs on several hosts: how hosts meet, and how they learn from each other what went wrong. Imports no torch."""
