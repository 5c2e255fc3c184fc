"""What ranks did when: traces, and pages that show them."""
