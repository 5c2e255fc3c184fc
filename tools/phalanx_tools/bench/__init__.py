"""Measure phalanx beside Gloo, OpenMPI and MPICH: one run, interleaved, correctness first."""
