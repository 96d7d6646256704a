"""`pool serve`: leases on the boxes of many nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.options import execute, view
from patchwright.errors import ConfigError

__all__ = ["app"]

NODES = "SWE_EXEC_SERVER_URLS"

app = typer.Typer(no_args_is_help=True, help="Lease the boxes of many nodes to many clients.")


@app.callback()
def _group() -> None:
    """Keeps `serve` a command of its own name."""


@app.command("serve")
def serve(
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node", metavar="URL", help="A node's address; repeatable. Also $SWE_EXEC_SERVER_URLS, a,b."
        ),
    ] = None,
    max_per_node: Annotated[
        int,
        typer.Option(
            "--max-per-node", min=1, envvar="SWE_MAX_CONTAINERS_PER_NODE", help="Most boxes on one node."
        ),
    ] = 16,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            envvar="SWE_ENV_SERVER_PORT",
            help="Port to listen on; 0 takes a free one.",
        ),
    ] = 18090,
    journal: Annotated[
        Path | None, typer.Option("--journal", metavar="FILE", help="SQLite file of the leases.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="The clients' token; made when it is not there.")
    ] = None,
    node_token_file: Annotated[
        Path | None, typer.Option("--node-token-file", help="The nodes' token.")
    ] = None,
    node_ca: Annotated[
        Path | None, typer.Option("--node-ca", help="Certificates (PEM) of nodes that speak HTTPS.")
    ] = None,
    ttl: Annotated[float, typer.Option("--ttl", min=0.1, help="Seconds an unused lease lives.")] = 300.0,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Most requests in the queue.")
    ] = 10_000,
    look_seconds: Annotated[
        float, typer.Option("--look-seconds", min=0.05, help="Seconds between two looks at a node.")
    ] = 3.0,
    warm: Annotated[
        list[str] | None, typer.Option("--warm", metavar="IMAGE=N", help="Boxes kept ready; repeatable.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its private key, PEM.")] = None,
    audit: Annotated[
        Path | None, typer.Option("--audit", metavar="FILE", help="File of the audit log.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Ask for no token; on loopback only.")] = False,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Listen beyond loopback without TLS.")
    ] = False,
) -> None:
    """Serve a pool of nodes; the protocol is that of swe-rl's pool server, and more."""
    from patchwright.fleet.serving import Address
    from patchwright.recipes.pool import PoolConfig, serve_pool

    config = PoolConfig(
        nodes=tuple(node or _from_environment()),
        address=Address(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key),
        journal=journal,
        token_file=token_file,
        node_token_file=node_token_file,
        node_ca=node_ca,
        audit=audit,
        open=open_,
        plain_http=plain_http,
        max_per_node=max_per_node,
        ttl=ttl,
        max_waiting=max_waiting,
        look_seconds=look_seconds,
        warm=dict(_warm(text) for text in warm or ()),
    )
    execute(serve_pool(config, view()))


def _from_environment() -> list[str]:
    return [url.strip() for url in os.environ.get(NODES, "").split(",") if url.strip()]


def _warm(text: str) -> tuple[str, int]:
    image, _, count = text.rpartition("=")
    if not image or not count.isdecimal():
        raise ConfigError(f"`--warm {text}` is not IMAGE=N; write for example `--warm python:3.11=4`")
    return image, int(count)
