"""Other people's tests, run against phalanx: the suite that ships inside the torch wheel, unedited."""
