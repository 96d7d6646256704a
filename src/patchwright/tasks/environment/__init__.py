"""Environments: what a task's tests run in, made from Debian and the package index alone, without a registry.

    Recipe -> base system (`system`) + interpreter (`pythons`) + packages fetched outside (`wheels`)
    -> installed inside a closed box, kept as a layer (`build`) -> an image of the store

Equal recipes are built once: every step is an image of the store, named by what it is made of.
"""
