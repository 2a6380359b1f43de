"""A training's own values beside the specified ones, whoever wrote its loop."""
