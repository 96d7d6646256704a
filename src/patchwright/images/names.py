"""Names of images, and the rules by which task sources name theirs. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from patchwright.config import nearest
from patchwright.errors import ConfigError

__all__ = ["DOCKER_HUB", "SOURCES", "Name", "image_of"]

DOCKER_HUB = "docker.io"
_REGISTRY = (
    r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:)|\[[0-9a-fA-F:]+\])(?::\d{1,5})?"
)
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:(?P<registry>{_REGISTRY})/)?(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LONGEST = 255
_RULES = {
    "swe-bench": ("docker.io/swebench/sweb.eval.x86_64.{}:latest", "_1776_"),
    "swe-gym": ("docker.io/xingyaoww/sweb.eval.x86_64.{}:latest", "_s_"),
    "swe-rebench": ("docker.io/swerebench/sweb.eval.x86_64.{}:latest", "_1776_"),
}
"""Source -> its images, and what stands for the `__` of an instance id, which a repository may not hold."""
SOURCES = tuple(_RULES)
"""Sources whose images follow from the instance id."""


@dataclass(frozen=True, slots=True)
class Name:
    """Where an image is: registry, repository, and a tag or a digest.

    Example: `Name.parse("swebench/sweb.eval.x86_64.a_1776_b")`
    """

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Name:
        """Read a name as Docker does: `docker.io`, `library/` and `:latest` may be left out.

        Raises ConfigError when it is none.
        """
        found = _NAME.fullmatch(text) if len(text) <= _LONGEST + 200 else None
        if found is None:
            hint = "; names are in lower case" if text != text.lower() else ""
            raise ConfigError(f"{text[:200]!r} is not the name of an image, REGISTRY/REPOSITORY:TAG{hint}")
        registry, repository = found["registry"] or DOCKER_HUB, found["repository"]
        registry = DOCKER_HUB if registry == "index.docker.io" else registry
        if registry == DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        if len(repository) > _LONGEST:
            raise ConfigError(f"the repository of {text[:80]!r}... has more than {_LONGEST} letters")
        digest = found["digest"] or ""
        return cls(registry, repository, found["tag"] or ("" if digest else "latest"), digest)

    @property
    def reference(self) -> str:
        """What a registry is asked for: the digest, else the tag."""
        return self.digest or self.tag

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}{'@' + self.digest if self.digest else ''}"


def image_of(record: Mapping[str, object], source: str) -> str:
    """The image of a data set's record: its `image_name`, else the rule of its source for `instance_id`.

    Raises ConfigError for an unknown source, or a record with neither.

    Example: `image_of({"instance_id": "django__django-11099"}, "swe-bench")`
    """
    given = record.get("image_name")
    if isinstance(given, str) and given:
        return given
    instance = record.get("instance_id")
    if not isinstance(instance, str) or not instance:
        raise ConfigError("a record has neither `image_name` nor `instance_id`; give it one of them")
    if source not in _RULES:
        close = nearest(source, SOURCES)
        hint = f"did you mean {close!r}?" if close else f"choose one of {', '.join(SOURCES)}"
        raise ConfigError(f"no rule names the images of source {source!r}; {hint}")
    pattern, joint = _RULES[source]
    return pattern.format(instance.lower().replace("__", joint))
