"""What a spec is: how one version of one repository is set up and tested. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Spec"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """The recipe of an environment and of its test run.

    Example: `Spec(repo="pallets/flask", python="3.11", install=("pip install -e .",), test=("pytest -rA",))`
    """

    repo: str
    version: str = ""
    harness: str = "swebench"
    """Whose evaluation the spec belongs to: `swebench`, `swegym`, `rebench`, `rebench2` or `smith`."""
    language: str = "python"
    python: str = ""
    """Version of the interpreter; empty for other languages, or when an environment file says it."""
    packages: str = ""
    """What the environment starts with: names for conda, or `requirements.txt` / `environment.yml`, which
    stand for the repository's own file."""
    requirements: tuple[str, ...] = ()
    """Where the repository keeps its requirements; the first path that exists counts."""
    environment: tuple[str, ...] = ()
    """Where the repository keeps its conda environment; the first path that exists counts."""
    no_use_env: bool = False
    """The environment is made first and then updated from the file, instead of made from it."""
    env_patches: tuple[str, ...] = ()
    """Shell lines run on the requirements or environment file before it is used."""
    pip: tuple[str, ...] = ()
    """Requirements installed into the environment after everything else."""
    apt: tuple[str, ...] = ()
    """Debian packages."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """Versions of compilers and interpreters other than Python (`go_version` -> `1.23.8`)."""
    cpus: int = 0
    """Processors the tests need to end in time; 0 when any number does."""
    nonroot: bool = False
    """The tests must not run as root."""
    pre_install: tuple[str, ...] = ()
    """Shell lines run in the repository before it is installed; full shell, not only `sed`."""
    install: tuple[str, ...] = ()
    """Shell lines that install the repository; Python's run again before every evaluation."""
    build: tuple[str, ...] = ()
    """Shell lines that compile it, run again once the tests are in place."""
    eval_commands: tuple[str, ...] = ()
    """Shell lines run before the tests, in the same shell."""
    test: tuple[str, ...] = ()
    """The test command; Python's is followed by what is to be tested."""
    directives: str = "files"
    """How the test patch says what to test, see `directives.py`."""
    parser: str = "parse_log_pytest"
    """Official name of the log parser."""
    fail_only: bool = False
    """The log names failures only: a test that is not in it has passed."""
