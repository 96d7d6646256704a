"""What a repository's own requirements file asks for, read out of the repository as it is at one commit.

Read as SWE-bench's harness reads it: `-r` is followed, and the repository itself (`-e .`) is left to the
lines that install it. Whatever else pip would do something with is refused, not left out.
"""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from patchwright.errors import ConfigError
from patchwright.tasks.specs.spec import Spec

__all__ = ["file_requirements"]

_COMMENT = re.compile(r"(?:^|\s)#.*")
_OWN = re.compile(r"(?:-e|--editable)[ =]*\.\S*|\.(?:\[.*\])?")
_MORE = re.compile(r"(?:-r|--requirement)[ =]*(\S+)")
_MEND = "give --recipes a recipe that says what it needs"


def file_requirements(spec: Spec, archive: bytes) -> tuple[str, ...]:
    """The requirements of the first of `spec.requirements` that is in a tar of the repository, without those
    that `spec.pip` has in another version: it is installed after them.

    Raises ConfigError when there is no such file, or it has a line that is no plain requirement.
    """
    files = _Files(spec.repo, archive)
    path = next((path for path in spec.requirements if files.text(path) is not None), None)
    if path is None:
        named = " or ".join(spec.requirements) or "a requirements file nobody names"
        raise ConfigError(f"{spec.repo} is made from {named}, which is not in the repository; {_MEND}")
    later = {_name(one) for one in spec.pip}
    return tuple(dict.fromkeys(one for one in files.lines(path) if _name(one) not in later))


class _Files:
    """The files of a repository, every requirements file read once."""

    def __init__(self, repo: str, archive: bytes) -> None:
        self._repo, self._archive, self._seen = repo, archive, set[str]()

    def text(self, path: str) -> str | None:
        """None for what is no file of the repository."""
        try:
            with tarfile.open(fileobj=io.BytesIO(self._archive)) as tar:
                data = tar.extractfile(path)
                text = data.read().decode("utf-8", "replace") if data else None
        except (KeyError, RecursionError, tarfile.ReadError):  # neither it nor what it links to
            return None
        return text.replace("\\\n", " ") if text else text

    def lines(self, path: str) -> Iterator[str]:
        """Its requirements, and those of the files that it names."""
        self._seen.add(path)
        for line in (self.text(path) or "").splitlines():
            wish = _COMMENT.sub("", line).strip()
            if not wish or _OWN.fullmatch(wish):
                continue
            if more := _MORE.fullmatch(wish):
                yield from self._more(path, more[1])
            elif _name(wish):
                yield wish
            else:
                raise ConfigError(f"{path} of {self._repo}: `{wish[:100]}` is no plain requirement; {_MEND}")

    def _more(self, path: str, named: str) -> Iterator[str]:
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), named))
        if self.text(found) is None:
            raise ConfigError(f"{path} of {self._repo}: {named} is not in the repository; {_MEND}")
        if found not in self._seen:
            yield from self.lines(found)


def _name(requirement: str) -> str:
    """What a plain requirement asks for; empty for URLs, paths and options."""
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:
        return ""
    return "" if parsed.url else canonicalize_name(parsed.name)
