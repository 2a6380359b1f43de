"""Stages of a step beside the specified ones, of whatever trains: no trainer is known here."""
