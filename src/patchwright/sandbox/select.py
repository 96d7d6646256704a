"""Picks a sandbox backend by name."""

from __future__ import annotations

from patchwright.errors import ConfigError
from patchwright.sandbox.base import SandboxBackend

BACKENDS = ("namespace", "docker", "process")


def open_backend(name: str, *, image: str | None = None, warm: int = 0) -> SandboxBackend:
    """The backend called `name`. `image` and `warm` are for docker: what boxes of image `host` are made from,
    and how many containers are kept started.

    Raises ConfigError for an unknown name, or what the backend cannot use.

    Example: `backend = open_backend("namespace")`
    """
    if name == "docker":
        from patchwright.sandbox.docker import DockerBackend

        return DockerBackend(default_image=image, warm=warm)
    if name not in BACKENDS:
        raise ConfigError(f"sandbox {name!r} does not exist; choose one of {', '.join(BACKENDS)}")
    if image is not None:
        raise ConfigError(f"sandbox {name!r} takes no image ({image!r}); leave it out or choose docker")
    if warm:
        raise ConfigError(
            f"sandbox {name!r} keeps no boxes warm (warm = {warm}): it opens one in milliseconds; leave it "
            "out or choose docker"
        )
    if name == "process":
        from patchwright.sandbox.process import ProcessBackend

        return ProcessBackend()
    from patchwright.sandbox.namespace import NamespaceBackend

    return NamespaceBackend()
