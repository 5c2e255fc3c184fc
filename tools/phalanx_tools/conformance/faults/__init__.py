"""The fault matrix: every operation on real ranks with every fault, and whether all survivors name the culprit."""
