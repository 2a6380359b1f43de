"""Faults that nobody wrote: one random change of code that a training step runs, by the thousand.

sites         where a module can be changed, by `operators`
planting      a change put into the functions of a module that is imported; `changed_text` shows it
script        somebody's training script, run up to its `train()`
heard         what a few steps do, stage by stage, and `difference` between two runs
whole         a whole training with another seed, and how good the policy is that comes out
trial         one mutant: what it does, and what the looks say about it
nursery       many trials, each in a fork of a process that has everything imported
draw          which mutants: a sample by operator, split before anybody looks
study         a folder of results that goes on where it stopped; `work` fills several at once
results       what was kept, put together, with harm and other tools; `tables` of it
"""
