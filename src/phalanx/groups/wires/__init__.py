"""What moves bytes between hosts, one module per engine. None of them reduces, or knows what the bytes mean."""
