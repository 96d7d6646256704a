"""Who this machine is to a registry: Docker's own login file, and the tokens registries hand out for it."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from patchwright.errors import ConfigError, ImageError

__all__ = ["challenge", "load_credentials", "token_of"]

_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')
_HUB_HOSTS = ("index.docker.io", "docker.io", "registry.hub.docker.com")


def load_credentials() -> dict[str, str]:
    """Host -> `Basic ...` header, from `auths` of `config.json` in $DOCKER_CONFIG or `~/.docker`.

    Entries of credential helpers are left out. Raises ConfigError when the file is not JSON.
    """
    place = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    file = place / "config.json"
    try:
        auths = json.loads(file.read_text(encoding="utf-8")).get("auths") or {}
        entries = {_host(where): entry["auth"] for where, entry in auths.items() if entry.get("auth")}
    except OSError:
        return {}
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{file} is not a login file of Docker: {error}; log in again") from None
    return {host: f"Basic {_checked(auth, file)}" for host, auth in entries.items()}


def _host(where: str) -> str:
    host = urlsplit(where if "//" in where else f"//{where}").netloc
    return "registry-1.docker.io" if host in _HUB_HOSTS else host


def _checked(auth: str, file: Path) -> str:
    try:
        base64.b64decode(auth, validate=True)
    except (ValueError, TypeError):
        raise ConfigError(f"{file} holds a login that is not base64; log in again") from None
    return auth


def challenge(header: str) -> tuple[str, dict[str, str]]:
    """Scheme in lower case and parameters of a `WWW-Authenticate` header (RFC 9110, 11.6.1)."""
    scheme, _, rest = header.strip().partition(" ")
    found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
    return scheme.lower(), found


def token_of(reply: Mapping[str, object], realm: str) -> str:
    """The token in a token server's reply. Raises ImageError when there is none."""
    token = reply.get("token") or reply.get("access_token")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ImageError(f"{realm} gave no token")
    return token
