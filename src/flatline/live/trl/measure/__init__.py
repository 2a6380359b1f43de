"""What a checkup measures on a live TRL trainer, one kind of measurement a file."""
