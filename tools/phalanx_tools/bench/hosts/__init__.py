"""Compare phalanx over several hosts with flat Gloo, OpenMPI and MPICH over the same links, in one interleaved run."""
