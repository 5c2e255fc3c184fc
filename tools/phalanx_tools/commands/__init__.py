"""The commands of ./dev."""
