"""The viewer: runs, live jobs, tasks and attempts in a browser, served from this machine.

Sits beside `integrations`, above `recipes`, whose readers it uses. It reads and never writes.
"""
