"""Images without a daemon: pulled from a registry or an archive, unpacked once per unique layer, kept in a
content-addressed store whose folders namespace boxes stack as overlay lowers.

Sits beside `sandbox` and imports nothing of it; `recipes/images.py` joins the two.
"""
