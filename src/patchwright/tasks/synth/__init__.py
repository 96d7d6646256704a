"""Tasks from any package: a library's own functions broken, its own tests the judge.

    source -> library (its modules and tests, read as text) -> survey (its tests in boxes: which pass, what
    each touches) -> bugs -> trial (in boxes: caught for the right reason, gone with the solution) -> Task

The library is hostile code like any other: it is read here, and run in boxes only.
"""
