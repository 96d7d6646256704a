"""`patchwright view`: open the shelf, listen, say where."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

from patchwright.config import Config
from patchwright.fleet.client import PoolClient
from patchwright.fleet.serving import Address, Serving
from patchwright.fleet.tokens import POOL_TOKEN, check_exposure, config_folder, new_token, read_token, trust
from patchwright.recipes.progress import View
from patchwright.recipes.stopping import stopping
from patchwright.view.server import view_app
from patchwright.view.shelf import Shelf, open_shelf

__all__ = ["ViewConfig", "serve_view", "serving"]


class ViewConfig(Config):
    """What the viewer is told."""

    paths: tuple[Path, ...] = ()
    """Runs, folders of runs, files of attempts; the folder `runs` when there is none."""
    attempt: str = ""
    """Id of the attempt the link opens."""
    address: Address = Address()
    """Where to listen."""
    plain_http: bool = False
    """Listen beyond loopback without TLS."""
    browser: bool = False
    """Open the link in a browser."""
    pool: str = ""
    """Address of a pool whose leases and nodes the live page shows."""
    pool_token_file: Path | None = None
    """File with the pool's token; that of a pool on this machine when not given."""
    pool_ca: Path | None = None
    """Certificates, PEM, by which the pool is known; the system's when not given."""


@asynccontextmanager
async def serving(config: ViewConfig, shelf: Shelf) -> AsyncIterator[str]:
    """Serve while the block runs; gives the link, which holds the token. Raises ConfigError."""
    tls = config.address.tls_cert is not None
    check_exposure(config.address.host, open_=False, tls=tls, plain_http=config.plain_http)
    token, closing = new_token(), asyncio.Event()
    async with AsyncExitStack() as stack:
        fleet = None
        if config.pool:
            secret = read_token(config.pool_token_file or config_folder() / POOL_TOKEN)
            client = PoolClient(config.pool, secret, verify=trust(config.pool_ca))
            stack.push_async_callback(client.aclose)
            fleet = client.status
        app = view_app(shelf, token, closing, fleet)
        served = await stack.enter_async_context(Serving(app, config.address))
        stack.callback(closing.set)  # before the server waits for its streams to end
        yield f"{served.url}/?token={token}{_place(shelf, config.attempt)}"


def _place(shelf: Shelf, attempt: str) -> str:
    """The page the link opens: of an attempt, where one was named."""
    if not attempt:
        return ""
    name = next((name for name, book in shelf if book.entry(attempt)), next(iter(shelf))[0])
    return f"#/attempt?run={quote(name, safe='')}&id={quote(attempt, safe='')}"


async def serve_view(config: ViewConfig, view: View) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigError."""
    shelf = open_shelf(config.paths)
    try:
        async with serving(config, shelf) as link, stopping() as stop:
            for line in (f"view     {link}", f"runs     {', '.join(name for name, _ in shelf)}"):
                view.console.print(line, soft_wrap=True, highlight=False, markup=False)
            if config.browser:
                await asyncio.to_thread(webbrowser.open, link)
            await stop.wait()
    finally:
        shelf.close()
