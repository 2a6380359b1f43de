"""Measurements on a live trainer, whichever it is."""
