"""Sources: rows of the known data sets, and folders of tasks, become tasks.

file | folder | hub -> rows -> kind (by columns, or told) -> Task, its row kept in `meta`
"""

from patchwright.tasks.sources.kinds import KINDS, Imported, build, import_tasks, kind_of
from patchwright.tasks.sources.seed import from_seed, is_seed, row_of, to_seed

__all__ = [
    "KINDS",
    "Imported",
    "build",
    "from_seed",
    "import_tasks",
    "is_seed",
    "kind_of",
    "row_of",
    "to_seed",
]
