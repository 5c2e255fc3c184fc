"""What this machine offers to ranks: `phalanx doctor`."""
