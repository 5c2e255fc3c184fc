"""What people who work on phalanx run from a clone of its repository; it is not part of the wheel. See ./dev."""
