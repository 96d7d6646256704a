"""`patchwright pool serve`: a pool of nodes behind its HTTP interface."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from patchwright.config import Config
from patchwright.errors import ConfigError
from patchwright.fleet.audit import Audit, audit_file
from patchwright.fleet.journal import Journal
from patchwright.fleet.node_client import NodeClient
from patchwright.fleet.pool import Pool, PoolOptions
from patchwright.fleet.pool_api import DEFAULT_POOL_PORT
from patchwright.fleet.pool_server import pool_app
from patchwright.fleet.serving import Address, Serving
from patchwright.fleet.tokens import (
    NODE_TOKEN,
    POOL_TOKEN,
    check_exposure,
    config_folder,
    load_token,
    read_token,
    trust,
)
from patchwright.recipes.progress import View
from patchwright.recipes.stopping import stopping

__all__ = ["PoolConfig", "serve_pool"]

_LINK_PATIENCE = 3.0
"""Seconds the pool tries again to connect to a node; clients have more, and ask again themselves."""


class PoolConfig(Config):
    """What a pool server is told."""

    nodes: tuple[str, ...]
    """Addresses of the nodes, `http://HOST:PORT`; more may join later."""
    address: Address = Address(port=DEFAULT_POOL_PORT)
    """Where to listen."""
    journal: Path | None = None
    """SQLite file of the leases; in the configuration folder when not given."""
    token_file: Path | None = None
    """The clients' token; in the configuration folder when not given, and made there."""
    node_token_file: Path | None = None
    """The nodes' token; that of a node on this machine when not given."""
    node_ca: Path | None = None
    """Certificates, PEM, by which nodes that speak HTTPS are known; the system's when not given."""
    audit: Path | None = None
    """File of the audit log; left out: `~/.local/state/patchwright/pool-audit.jsonl`."""
    open: bool = False
    """Ask clients for no token."""
    plain_http: bool = False
    """Listen beyond loopback without TLS."""
    max_per_node: int = Field(default=16, ge=1)
    """Most boxes on one node."""
    ttl: float = Field(default=300.0, gt=0)
    """Seconds an unused lease lives."""
    max_waiting: int = Field(default=10_000, ge=1)
    """Most requests in the queue."""
    look_seconds: float = Field(default=3.0, gt=0)
    """Seconds between two looks at a node."""
    warm: dict[str, int] = Field(default_factory=dict)
    """Image -> boxes kept ready."""


async def serve_pool(config: PoolConfig, view: View) -> None:
    """Serve until SIGINT or SIGTERM. Leases go on without the pool, and the next one takes them over.

    Raises ConfigError: a node's address is none, the journal is in use, the address cannot be listened on.
    """
    address = config.address
    tls = address.tls_cert is not None
    check_exposure(address.host, open_=config.open, tls=tls, plain_http=config.plain_http)
    token_file = config.token_file or config_folder() / POOL_TOKEN
    token = "" if config.open else load_token(token_file)
    audit = Audit(config.audit or audit_file("pool-audit"))
    pool = _pool(config)
    await pool.start()
    try:
        async with Serving(pool_app(pool, token, audit), address) as serving, stopping() as stop:
            view.say(f"pool     {serving.url}")
            view.say(f"token    {'none is asked for' if config.open else token_file}")
            view.say(
                f"nodes    {len(pool.nodes)}, {sum(x.state.healthy for x in pool.nodes.values())} healthy"
            )
            await stop.wait()
    finally:
        await pool.close()
        audit.close()


def _pool(config: PoolConfig) -> Pool:
    for url in config.nodes:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"node {url!r} is no address; write it as http://HOST:PORT")
    node_token = _node_token(config)
    options = PoolOptions(
        max_per_node=config.max_per_node,
        ttl=config.ttl,
        max_waiting=config.max_waiting,
        look_seconds=config.look_seconds,
        warm=config.warm,
    )
    journal = Journal(config.journal or config_folder() / f"pool-{config.address.port}.db")

    trusted = trust(config.node_ca)

    def connect(url: str) -> NodeClient:
        return NodeClient(url, node_token, patience=_LINK_PATIENCE, verify=trusted)

    return Pool(list(config.nodes), connect, journal, options)


def _node_token(config: PoolConfig) -> str:
    """The nodes' token; an open pool may stand before open nodes, which have none."""
    file = config.node_token_file or config_folder() / NODE_TOKEN
    if config.open and config.node_token_file is None and not file.exists():
        return ""
    return read_token(file)
