"""Faults that nobody wrote: one random change of code that a training step runs, by the thousand.

sites      where a module can be changed, by `operators`
planting   a change put into a module while it is imported
script     somebody's training script, run up to its `train()`
trial      what a change does to the training, and what the checkup says about it
nursery    many trials, each in a fork of a process that has everything imported
draw       which mutants: a sample by operator, split before anybody looks
study      a folder of results that goes on where it stopped
tables     what they show
"""
