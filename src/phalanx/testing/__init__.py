"""Tests on several ranks: a pytest plugin, unittest classes, and a world of ranks to use by hand."""
