"""A report in the formats that continuous integration reads.

    fail_on.py   what makes a command fail, said once for all of them
    baseline.py  what is known, so that only what is new fails
    junit.py     JUnit XML: one test case per hypothesis
    sarif.py     SARIF 2.1.0: one result per alarm or note
    github.py    GitHub's workflow commands: one line per alarm

Texts may hold what a model wrote: each format escapes it in its own way, and a test feeds each the
same hostile report. Nothing is imported here: the command line shows `FailOn` without numpy.
"""
