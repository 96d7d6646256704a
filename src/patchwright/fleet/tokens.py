"""Bearer tokens: made into a file only their owner can read, compared in constant time, and the rule of
which addresses may be listened on with what protection. Shared by node and pool."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import ssl
from pathlib import Path

from patchwright.errors import ConfigError

__all__ = [
    "NODE_TOKEN",
    "POOL_TOKEN",
    "bearer",
    "check_exposure",
    "config_folder",
    "load_token",
    "new_token",
    "read_token",
    "same",
    "trust",
]

NODE_TOKEN = "node.token"
"""Name of a node's token file in `config_folder()`."""
POOL_TOKEN = "pool.token"
"""Name of a pool's."""
_SHORTEST = 16


def config_folder() -> Path:
    """`$XDG_CONFIG_HOME/patchwright`, or `~/.config/patchwright`."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "patchwright"


def trust(file: Path | None) -> ssl.SSLContext | None:
    """What a client trusts besides the system's authorities: the certificates in `file`, if one is given.

    Raises ConfigError.
    """
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:  # what ssl raises is one too
        raise ConfigError(f"certificate file {file} cannot be used: {error}; give one in PEM") from None


def new_token() -> str:
    """A random token of 32 bytes, in URL-safe text."""
    return secrets.token_urlsafe(32)


def load_token(file: Path) -> str:
    """The token in `file`; made there, for its owner's eyes only, when there is no such file.

    Raises ConfigError when the file cannot be read or written, or holds no token.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(file)
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token file {file} cannot be used: {error}; give another --token-file") from None
    if len(token) < _SHORTEST or any(character.isspace() for character in token):
        raise ConfigError(
            f"token file {file} holds no token (one word of at least {_SHORTEST} characters); "
            "remove it and a new one is made"
        )
    return token


def read_token(file: Path) -> str:
    """The token in `file`, for a client. Raises ConfigError when there is no such file, or no token in it."""
    if not file.exists():
        raise ConfigError(f"there is no token file {file}; copy it from the server, or name another one")
    return load_token(file)


def _make(file: Path) -> None:
    """Write a new token unless the file exists: complete, or not there at all."""
    if file.exists():
        return
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as out:
        out.write(f"{new_token()}\n")
    try:
        os.link(draft, file)  # unlike a rename, it never replaces the token of a server started meanwhile
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def same(given: str, expected: str) -> bool:
    """Whether two tokens are equal, in a time that tells nothing. An empty `expected` equals nothing."""
    return bool(expected) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def bearer(authorization: str) -> str:
    """The token of an Authorization header; empty when it holds none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def check_exposure(host: str, *, open_: bool, tls: bool, plain_http: bool) -> None:
    """Whether a server may listen on `host`: beyond loopback only with tokens, and with TLS unless plain
    HTTP is asked for by name. Raises ConfigError."""
    if _is_loopback(host):
        return
    if open_:
        raise ConfigError(
            f"--open lets everybody run commands, so it works on loopback only, not on {host}; drop it"
        )
    if not tls and not plain_http:
        raise ConfigError(
            f"tokens would cross the network in the clear on {host}; give --tls-cert and --tls-key, "
            "or --plain-http for a network you trust"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
