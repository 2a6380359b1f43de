"""TRL's trainers, taken hold of: everything that knows TRL."""
