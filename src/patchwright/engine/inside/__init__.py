"""Code that runs inside other people's model servers: this folder is put on their PYTHONPATH, and nothing in
it imports Patchwright."""
