"""verl on a CPU with the lab policy."""
