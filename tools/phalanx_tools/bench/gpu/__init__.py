"""Many ranks on one GPU, measured: collectives, a training step, and what sharing costs."""
