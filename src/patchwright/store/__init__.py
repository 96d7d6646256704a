"""The run's folder: what a run has done, absent or complete, readable while it goes on.

`run.Run` is the whole surface; `index` is its SQLite file, `parts` its Parquet files, `codec` the form of a
stored trajectory, `files` the atomic writes and the lock. Metrics are next door in `patchwright.metrics`.
"""

from patchwright.store.index import Entry, Mark
from patchwright.store.run import Run

__all__ = ["Entry", "Mark", "Run"]
