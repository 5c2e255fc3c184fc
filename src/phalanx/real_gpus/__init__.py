"""The real GPUs of this machine: which there are, and how ranks share their memory."""
