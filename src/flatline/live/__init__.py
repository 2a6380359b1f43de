"""What is held of a training that is under way, whoever wrote its loop."""
