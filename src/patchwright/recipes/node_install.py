"""`patchwright node install`: a systemd unit for a node, and whether this machine can make its boxes."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.recipes.images import Wanted, pull_images
from patchwright.recipes.node import NodeConfig, open_machinery
from patchwright.recipes.progress import View

__all__ = ["Unit", "install", "unit"]

_NAME = "patchwright-node.service"
_PYTHON = Path(sys.executable)
_STATE = "/var/lib/patchwright"
_STOP = 30
"""Seconds over the grace until systemd kills what is left."""

_COMMON = """\
[Unit]
Description=Patchwright node: boxes for agents and tests
After=network-online.target docker.service
Wants=network-online.target

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=2
KillMode=mixed
TimeoutStopSec={stop}
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=65536
Delegate=yes
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
SystemCallArchitectures=native
"""
# Boxes mount a /proc of their own, which the kernel refuses where parts of /proc are hidden: so there is no
# ProtectProc, ProtectKernelTunables or ProtectKernelLogs, and no RestrictNamespaces.
_SYSTEM = """\
DynamicUser=yes
Environment=HOME=/var/lib/patchwright
StateDirectory=patchwright
StateDirectoryMode=0700
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
{docker}
[Install]
WantedBy=multi-user.target
"""
_USER = """\

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A unit file and where it goes. Example: `print(unit(NodeConfig(), system=True).text)`"""

    file: Path
    text: str
    commands: tuple[str, ...]
    """What starts it, to be run by the user."""


def unit(config: NodeConfig, *, system: bool, python: Path = _PYTHON) -> Unit:
    """The unit of a node that runs in `python`: of the machine when `system`, else of this user.

    Raises ConfigError when the machine's services could not read the program.
    """
    stop = int(config.grace) + _STOP
    command = shlex.join(_command(config, system, python)).replace("%", "%%").replace("$", "$$")
    common = _COMMON.format(command=command, stop=stop)
    if not system:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        start = ("systemctl --user daemon-reload", f"systemctl --user enable --now {_NAME}")
        return Unit(file=folder / _NAME, text=common + _USER, commands=start)
    _check_reachable(python)
    docker = "SupplementaryGroups=docker\n" if config.sandbox.use == "docker" else ""
    return Unit(
        file=Path("/etc/systemd/system") / _NAME,
        text=common + _SYSTEM.format(docker=docker),
        commands=("systemctl daemon-reload", f"systemctl enable --now {_NAME}"),
    )


async def install(config: NodeConfig, view: View, *, system: bool, pull: tuple[str, ...] = ()) -> None:
    """Write the unit, look whether boxes can be made, pull images, and say what is left to do.

    Raises ConfigError when the unit cannot be written, ImageError for the first image that cannot be had.
    """
    made = unit(config, system=system)
    docker = config.sandbox.use == "docker"
    if pull and system and not docker:
        raise ConfigError(
            f"--pull would fill your own store, but the service has one in {_STATE}; "
            "give --user, or --sandbox docker"
        )
    try:
        made.file.parent.mkdir(parents=True, exist_ok=True)
        made.file.write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{made.file} cannot be written: {error.strerror}; run it as root, or with --user"
        ) from None
    view.say(f"wrote {made.file}")
    async with open_machinery(config.sandbox) as machinery:
        reason = await machinery.probe()
    view.say(f"{config.sandbox.use} boxes: {reason or 'this machine makes them'}")
    if pull:
        await _pull(config, pull, view, docker)
    for command in made.commands:
        view.say(f"next: {command}")


async def _pull(config: NodeConfig, names: tuple[str, ...], view: View, docker: bool) -> None:
    wanted = Wanted(names=names)
    found = await pull_images(config.sandbox.images, wanted, view, archive=None, docker=docker, refresh=False)
    for error in found.values():
        if error is not None:
            raise error


def _command(config: NodeConfig, system: bool, python: Path) -> list[str]:
    """The command line of the service, with what differs from the defaults."""
    flags = [f"--host={config.host}", f"--port={config.port}", f"--sandbox={config.sandbox.use}"]
    if config.sandbox.image:
        flags.append(f"--image={config.sandbox.image}")
    if config.sandbox.warm:
        flags.append(f"--warm={config.sandbox.warm}")
    flags.append(f"--max-boxes={config.max_boxes}")
    if config.ttl < float("inf"):
        flags.append(f"--ttl={config.ttl:g}")
    flags.append(f"--grace={config.grace:g}")
    flags += [f"--{name}" for name in ("open", "plain_http") if getattr(config, name)]
    files = {"tls-cert": config.tls_cert, "tls-key": config.tls_key, **_files(config, system)}
    flags += [f"--{name}={file}" for name, file in files.items() if file is not None]
    return [str(python), "-m", "patchwright.cli", "node", "serve", *flags]


def _files(config: NodeConfig, system: bool) -> dict[str, Path | None]:
    state = Path(_STATE) if system else None
    return {
        "token-file": config.token_file or (state and state / "node.token"),
        "audit": config.audit or (state and state / "node-audit.jsonl"),
    }


def _check_reachable(python: Path) -> None:
    """The service runs as a user of its own, who must reach the interpreter and the package."""
    for path in (python.absolute(), python.resolve(), Path(__file__).resolve()):
        closed = [folder for folder in path.parents if folder.is_dir() and not folder.stat().st_mode & 0o001]
        if closed:
            raise ConfigError(
                f"the service's user cannot reach {path}, because {closed[0]} is closed to others; install "
                "Patchwright below /opt, or give --user for a service of your own user"
            )
