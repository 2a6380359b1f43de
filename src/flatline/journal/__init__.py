"""The journal of an investigation: a folder of Markdown in the seeds' layout.

`Journal.open(path)` opens one, `begin` makes one, `record` writes a result into it. Prose is the
person's: flatline writes between its own markers and into the front matter, and nowhere else.
"""

from flatline.journal.entry import Entry, Status
from flatline.journal.folder import Journal
from flatline.journal.record import record, update_status
from flatline.journal.template import begin

__all__ = ["Entry", "Journal", "Status", "begin", "record", "update_status"]
