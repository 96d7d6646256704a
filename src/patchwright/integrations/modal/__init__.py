"""Apps for Modal: a server of a model, training, and boxes. Needs `pip install 'patchwright[modal]'`."""
