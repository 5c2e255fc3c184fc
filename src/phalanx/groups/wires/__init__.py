"""The wires, which move bytes between hosts: one module for each library. They know nothing about the bytes."""
