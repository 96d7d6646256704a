"""`view`: runs and attempts in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.options import execute
from patchwright.cli.options import view as progress
from patchwright.errors import ConfigError

__all__ = ["view"]

_NAMED = 10
"""Runs of a folder that a sentence names."""


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs, folders of runs, traj.json, output.jsonl; the folder `runs` when none is named.",
        ),
    ] = None,
    attempt: Annotated[str, typer.Option("--attempt", metavar="ID", help="Open this attempt.")] = "",
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write one attempt to an HTML file and serve nothing."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Open the link in a browser.")] = False,
    pool: Annotated[
        str, typer.Option("--pool", metavar="URL", help="Show this pool's nodes and leases beside live runs.")
    ] = "",
    pool_token_file: Annotated[
        Path | None, typer.Option("--pool-token-file", help="File with the pool's token.")
    ] = None,
    pool_ca: Annotated[
        Path | None, typer.Option("--pool-ca", help="Certificates (PEM) of a pool that speaks HTTPS.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its private key, PEM.")] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Listen beyond loopback without TLS.")
    ] = False,
) -> None:
    """Look at runs, live jobs and attempts in a browser; the link it prints holds a token."""
    if export is not None:
        _export(list(runs or ()), attempt, export)
        return
    from patchwright.fleet.serving import Address
    from patchwright.view.serve import ViewConfig, serve_view

    config = ViewConfig(
        paths=tuple(runs or ()),
        attempt=attempt,
        address=Address(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key),
        plain_http=plain_http,
        browser=browser,
        pool=pool,
        pool_token_file=pool_token_file,
        pool_ca=pool_ca,
    )
    execute(serve_view(config, progress()))


def _export(runs: list[Path], attempt: str, out: Path) -> None:
    from patchwright.view.export import export_html
    from patchwright.view.shelf import open_shelf

    if len(runs) != 1:
        raise ConfigError(
            "--export writes one attempt; name its run alone: `view RUN --attempt ID --export FILE`"
        )
    shelf = open_shelf(runs)
    try:
        books = list(shelf)
        if len(books) > 1:
            names = ", ".join([name for name, _ in books[:_NAMED]] + ["..."] * (len(books) > _NAMED))
            raise ConfigError(f"{runs[0]} holds {len(books)} runs or files; name one of them: {names}")
        [(_, book)] = books
        rows, total = book.page({}, order="id", window=(0, 1))
        if not attempt and total != 1:
            raise ConfigError(f"{runs[0]} holds {total} attempts; say which with --attempt ID")
        size = export_html(book, attempt or rows[0].id, out)
    finally:
        shelf.close()
    progress().say(f"written  {out} ({size / 1000:.0f} kB)")
