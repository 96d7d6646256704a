"""Beside a pool in Kubernetes: tells it which nodes there are. The standard library alone.

A name without an address of its own (a headless service) stands for the addresses of all nodes that are
ready. Whoever is new there joins the pool; whoever is gone from there for a while leaves it, once its boxes
are closed. A name that cannot be looked up changes nothing.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
import urllib.request
from pathlib import Path


def main() -> None:
    """Look every few seconds, until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", required=True, metavar="NAME:PORT")
    parser.add_argument("--pool", required=True, metavar="URL")
    parser.add_argument("--token-file", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="between two looks")
    parser.add_argument("--patience", type=int, default=6, help="looks that a node may be gone")
    options = parser.parse_args()
    gone: dict[str, int] = {}
    while True:
        try:
            gone = look(options, gone)
        except OSError as error:
            sys.stderr.write(f"members: {error}\n")
        time.sleep(options.seconds)


def look(options: argparse.Namespace, gone: dict[str, int]) -> dict[str, int]:
    """Bring the pool up to date; returns how often each of its nodes has been missed."""
    there = addresses(options.nodes)
    known = {str(node["url"]) for node in ask(options, "GET")["nodes"] if not node["draining"]}
    for url in sorted(there - known):
        ask(options, "POST", url)
    missed = {url: gone.get(url, 0) + 1 for url in known - there}
    for url, times in missed.items():
        if times == options.patience:
            ask(options, "DELETE", url)
    return missed


def addresses(name: str) -> set[str]:
    """Of all nodes behind `NAME:PORT`."""
    host, _, port = name.rpartition(":")
    found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)}
    return {f"http://[{one}]:{port}" if ":" in one else f"http://{one}:{port}" for one in found}


def ask(options: argparse.Namespace, method: str, url: str = "") -> dict[str, list[dict[str, object]]]:
    """One request to the pool's `/nodes`. Raises OSError."""
    token = options.token_file.read_text(encoding="ascii").strip()
    request = urllib.request.Request(
        f"{options.pool}/nodes",
        method=method,
        data=json.dumps({"url": url}).encode() if url else None,
        headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, list[dict[str, object]]] = json.load(answer)
        return found


if __name__ == "__main__":
    main()
