"""The golden corpus: what flatline answers to every kept log, recording and live script.

    python -m tests.golden                # make all answers and compare them with the kept ones
    python -m tests.golden --write        # keep them: then read `git diff tests/golden`
    python -m tests.golden --only WORD    # cases with this word in their name

Of each case the strict part (outcome, hypotheses with their level in the order of the report, which
of them explains which, the first function of each line) stands in `strict/GROUP.json`, the text in
`text/GROUP/CASE.txt`. A change of the strict part is a change of an answer: the commit says which
entry and why.
"""
