"""`node serve` and `node install`: this machine's boxes for others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchwright.cli.options import Image, SandboxName, execute, view

if TYPE_CHECKING:
    from patchwright.recipes.node import NodeConfig
else:
    NodeConfig = Any  # annotations are read here, and the real one takes half a second to import

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="A node: this machine's boxes, over HTTP.")

Host = Annotated[str, typer.Option("--host", help="Address to listen on; loopback unless told otherwise.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Warm = Annotated[
    int, typer.Option("--warm", min=0, help="Docker only: containers kept started of each image in use.")
]
MaxBoxes = Annotated[int, typer.Option("--max-boxes", min=1, help="Most boxes open at once.")]
Ttl = Annotated[
    float | None, typer.Option("--ttl", min=0.1, help="Close boxes after so many seconds without use.")
]
Grace = Annotated[
    float, typer.Option("--grace", min=0, help="Seconds that running commands have when the node is stopped.")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="The node's bearer token; made if missing.")
]
Open = Annotated[bool, typer.Option("--open", help="Ask for no token; on loopback only.")]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain (PEM).")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="Its private key (PEM).")]
PlainHttp = Annotated[
    bool, typer.Option("--plain-http", help="Serve beyond loopback without TLS, on a trusted network.")
]
AuditFile = Annotated[Path | None, typer.Option("--audit", help="File of the audit log.")]


def _node(
    host: Host = "127.0.0.1",
    port: Port = 5000,
    sandbox: SandboxName = "namespace",
    image: Image = None,
    warm: Warm = 0,
    max_boxes: MaxBoxes = 64,
    ttl: Ttl = None,
    grace: Grace = 10.0,
    token_file: TokenFile = None,
    open_: Open = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    plain_http: PlainHttp = False,
    audit: AuditFile = None,
) -> NodeConfig:
    """The node a command line describes; what was not given keeps its default."""
    from patchwright.recipes.node import NodeConfig

    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "sandbox": {"use": sandbox, "image": image or "", "warm": warm},
        "max_boxes": max_boxes,
        "ttl": ttl,
        "grace": grace,
        "token_file": token_file,
        "open": open_,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "plain_http": plain_http,
        "audit": audit,
    }
    return NodeConfig.model_validate({name: value for name, value in options.items() if value is not None})


def _with_node_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options of `_node` before its own, and what they say as its first argument."""
    shared = signature(_node, eval_str=True).parameters
    own = list(signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def run(**given: Any) -> None:
        config = _node(**{name: given.pop(name) for name in shared})
        command(config, **given)

    run.__signature__ = Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    return run


@app.command("serve")
@_with_node_options
def serve(config: NodeConfig) -> None:
    """Make boxes for whoever has the token, until stopped; then drain."""
    from patchwright.recipes.node import serve as recipe

    execute(recipe(config, view()))


@app.command("install")
@_with_node_options
def install(
    config: NodeConfig,
    pull: Annotated[
        list[str] | None, typer.Option("--pull", metavar="NAME", help="Image to pull; repeatable.")
    ] = None,
    user: Annotated[
        bool, typer.Option("--user", help="A service of this user instead of the machine's.")
    ] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the unit and write nothing.")] = False,
) -> None:
    """Write a systemd unit for `node serve` with these options, and check that boxes can be made."""
    from patchwright.recipes.node_install import install as recipe
    from patchwright.recipes.node_install import unit

    if show:
        typer.echo(unit(config, system=not user).text, nl=False)
        return
    execute(recipe(config, view(), system=not user, pull=tuple(pull or ())))
