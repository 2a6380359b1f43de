"""Somebody's training script, run unchanged with flatline in it."""
