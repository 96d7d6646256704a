"""Writes an image of the store as an archive: an OCI image layout that carries `manifest.json` too, so that
`docker load` and `podman load` of any age take it.

Layers are made anew from their folders (their first tar is not kept), so their digests differ from those of
the image that was pulled, and every file belongs to root.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchwright.images.manifest import digest_of
from patchwright.images.names import Name
from patchwright.images.store import Root, Store
from patchwright.images.unpack import OPAQUE, OPAQUE_NAME, WHITEOUT, is_whiteout
from patchwright.store.files import attributed, commit

__all__ = ["export"]

_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


def export(store: Store, name: Name, file: Path) -> None:
    """Write the image `name` to `file`, absent or complete.

    Raises ConfigError when the store does not have it, StoreError when the disk refuses.
    """
    root, hold = store.use(name)
    beside = file.with_name(f"{file.name}.tmp")
    try:
        with attributed("export an image", file):
            image = store.image(name)
            _write(beside, str(name), root, image.config if image else {})
            commit(beside, file)
    finally:
        beside.unlink(missing_ok=True)
        hold.release()


def _write(file: Path, name: str, root: Root, config: Mapping[str, Any]) -> None:
    with tarfile.open(file, "w") as out:
        layers = [_add_layer(out, folder, file.parent) for folder in reversed(root.lowers)]
        rootfs = {"type": "layers", "diff_ids": [digest for digest, _ in layers]}
        # the history may tell of layers that are in the image twice, here once
        kept = {key: value for key, value in config.items() if key != "history"}
        config_digest, config_size = _add_json(out, {**kept, "rootfs": rootfs})
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": config_digest, "size": config_size},
            "layers": [{"mediaType": _LAYER, "digest": digest, "size": size} for digest, size in layers],
        }
        digest, size = _add_json(out, manifest)
        annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        entry = {"mediaType": _MANIFEST, "digest": digest, "size": size, "annotations": annotations}
        saved = {
            "Config": _path(config_digest),
            "RepoTags": [name],
            "Layers": [_path(one) for one, _ in layers],
        }
        _add(out, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        _add(out, "manifest.json", _json([saved]))
        _add(out, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))


def _add_layer(out: tarfile.TarFile, folder: Path, scratch: Path) -> tuple[str, int]:
    """Add a layer; its digest and size. It is written to a file first: its name is its digest."""
    with tempfile.TemporaryFile(dir=scratch) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            _add_folder(tar, folder, "")
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        if _path(digest) not in out.getnames():
            file.seek(0)
            out.addfile(_entry(_path(digest), size), file)
    return digest, size


def _add_folder(tar: tarfile.TarFile, folder: Path, prefix: str) -> None:
    if _is_opaque(folder):
        tar.addfile(_entry(f"{prefix}{OPAQUE_NAME}", 0))
    for inner in sorted(os.scandir(folder), key=lambda one: one.name):
        name = f"{prefix}{inner.name}"
        if is_whiteout(inner.stat(follow_symlinks=False)):
            tar.addfile(_entry(f"{prefix}{WHITEOUT}{inner.name}", 0))
            continue
        member = tar.gettarinfo(inner.path, name)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if member.isreg():
            with Path(inner.path).open("rb") as content:
                tar.addfile(member, content)
        else:
            tar.addfile(member)
        if member.isdir():
            _add_folder(tar, Path(inner.path), f"{name}/")


def _is_opaque(folder: Path) -> bool:
    return any(name in OPAQUE for name in os.listxattr(folder))


def _add_json(out: tarfile.TarFile, value: object) -> tuple[str, int]:
    data = _json(value)
    digest = digest_of(data)
    _add(out, _path(digest), data)
    return digest, len(data)


def _add(out: tarfile.TarFile, path: str, data: bytes) -> None:
    out.addfile(_entry(path, len(data)), io.BytesIO(data))


def _entry(path: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.size = size
    return entry


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _path(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"
