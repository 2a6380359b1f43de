"""An OpenAI-compatible server for a local model, on the engine that flatline trains with.

request.py       a body in OpenAI's shape -> what is asked for, or an error that teaches
messages.py      its messages and tools
conversation.py  messages and tools -> token ids, exact where the server wrote the turn itself
batch.py         turns that are decoded together; one may join or leave at any step
player.py        the thread that owns the model
playing.py       the turns of one request, between that thread and the one that answers
answer.py        what was sampled -> OpenAI's shape; stream.py: the same in pieces
app.py           the addresses; start.py: from a model's name to a guarded application
"""
