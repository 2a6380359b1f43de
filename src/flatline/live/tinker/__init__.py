"""Training loops that use the clients of the Tinker API, recorded and looked at."""
