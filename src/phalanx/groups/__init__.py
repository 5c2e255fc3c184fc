"""Groups of ranks, behind one protocol (phalanx.collectives.Group)."""
