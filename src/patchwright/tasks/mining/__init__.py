"""Mining: real bug fixes, read out of two consecutive releases of a library.

    two sdists (`release`) -> what changed between them, in clusters of hunks (`changes`)
    -> the newer release with one cluster left out, its tests run in boxes (`trial`)
    -> issue text (`changelog`) -> Task (`mine`)

Both releases are hostile code: they are read here, and run in boxes only.
"""
