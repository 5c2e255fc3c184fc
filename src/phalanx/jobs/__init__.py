"""Programs on ranks: `phalanx run`."""
