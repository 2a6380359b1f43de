"""Alarms while they still help: in training, and on a log that grows.

sequential   does a series fall? valid at every look together
trends       the curves that are watched, and how far is far
lookout      a trace as it is now -> the alarms that are new
earned       the time that looking may take
training     after a step: what is cheap; console, trackers, the user's function, stop
following    a file that grows
"""
