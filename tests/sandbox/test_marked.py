"""Processes are found by their environment, also those that are between two programs."""

import os
import subprocess
import time

from patchwright.sandbox.marked import MARK, kill_marked


def test_a_process_that_becomes_another_all_the_time_is_killed(tmp_path):
    """In the midst of `execve` a process shows no environment."""
    script = tmp_path / "again"
    script.write_text('#!/bin/sh\nexec "$0"\n')
    script.chmod(0o755)
    for number in range(30):
        mark = f"{tmp_path.name}:{number}:"
        process = subprocess.Popen([script], env={**os.environ, MARK: mark})
        try:
            time.sleep(0.02)
            kill_marked(mark)
            assert process.wait(60) == -9
        finally:
            process.kill()
            process.wait()


def test_only_what_carries_the_mark_is_killed():
    marked = {**os.environ, MARK: "box-1:12:"}
    process = subprocess.Popen(["sleep", "60"], env=marked)
    try:
        kill_marked("box-1:1:")
        kill_marked("box-1:2:")
        assert process.poll() is None
        kill_marked("box-1:")
        assert process.wait(60) == -9
    finally:
        process.kill()
        process.wait()
