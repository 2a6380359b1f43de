"""Training loops in the shapes people copy, on the lab policy: healthy, and with a known defect.

They know nothing of flatline. Each is a function that trains a few steps; `watch` is handed in, and
its `rewards` is told the reward of every sampled row, which is all that a user adds.
"""
