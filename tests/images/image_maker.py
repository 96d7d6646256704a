"""Makes images out of Python values, and pushes them to a registry."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import httpx

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def entry(name: str, content: bytes | str = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """One member of a tar: a file, unless `type` says otherwise."""
    data = content.encode() if isinstance(content, str) else content
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o644, 1_600_000_000
    for key, value in fields.items():
        setattr(member, key, value)
    return member, data


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """The tar of a layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@dataclass
class Made:
    """An image as it goes over the wire."""

    tars: list[bytes]
    env: list[str] = field(default_factory=lambda: ["PATH=/bin", "COLOUR=blue=ish"])
    workdir: str = "/testbed"
    architecture: str = "amd64"
    manifest_type: str = MANIFEST

    def __post_init__(self) -> None:
        self.blobs = [gzip.compress(tar, mtime=0) for tar in self.tars]
        config = {
            "architecture": self.architecture,
            "os": "linux",
            "config": {"Env": self.env, "WorkingDir": self.workdir},
            "rootfs": {"type": "layers", "diff_ids": [sha(tar) for tar in self.tars]},
        }
        self.config = json.dumps(config).encode()
        layers = [{"mediaType": LAYER, "digest": sha(blob), "size": len(blob)} for blob in self.blobs]
        about = {"mediaType": CONFIG, "digest": sha(self.config), "size": len(self.config)}
        manifest = {"schemaVersion": 2, "mediaType": self.manifest_type, "config": about, "layers": layers}
        self.manifest = json.dumps(manifest).encode()

    @property
    def diff_ids(self) -> list[str]:
        return [sha(tar) for tar in self.tars]

    def push(self, registry: str, repository: str, reference: str = "latest") -> None:
        with httpx.Client(base_url=registry, trust_env=False, timeout=60) as client:
            for blob in [*self.blobs, self.config]:
                _push_blob(client, repository, blob)
            put(client, repository, reference, self.manifest, self.manifest_type)

    def layout(self, place: Path, name: str | None) -> Path:
        """An OCI image layout in a folder."""
        blobs = place / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for data in [*self.blobs, self.config, self.manifest]:
            (blobs / sha(data).removeprefix("sha256:")).write_bytes(data)
        described: dict[str, object] = {"mediaType": MANIFEST, "digest": sha(self.manifest)}
        described["size"] = len(self.manifest)
        if name:
            described["annotations"] = {"org.opencontainers.image.ref.name": name}
        (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
        (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        return place

    def docker_save(self, file: Path, name: str) -> Path:
        """What `docker save` of old wrote: plain tars in folders."""
        paths = [f"{index}/layer.tar" for index in range(len(self.tars))]
        config = f"{sha(self.config).removeprefix('sha256:')}.json"
        listed = json.dumps([{"Config": config, "RepoTags": [name], "Layers": paths}])
        members = [*zip(paths, self.tars, strict=True), (config, self.config), ("manifest.json", listed)]
        file.write_bytes(layer(*(entry(path, data) for path, data in members)))
        return file


def push_index(registry: str, repository: str, tag: str, **images: Made) -> None:
    """A list of images by architecture."""
    listed = []
    with httpx.Client(base_url=registry, trust_env=False, timeout=60) as client:
        for architecture, made in images.items():
            made.push(registry, repository, sha(made.manifest))
            platform = {"os": "linux", "architecture": architecture}
            about = {"mediaType": MANIFEST, "digest": sha(made.manifest), "size": len(made.manifest)}
            listed.append({**about, "platform": platform})
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}).encode()
        put(client, repository, tag, index, INDEX)


def put(client: httpx.Client, repository: str, reference: str, manifest: bytes, kind: str) -> None:
    url = f"/v2/{repository}/manifests/{reference}"
    client.put(url, content=manifest, headers={"Content-Type": kind}).raise_for_status()


def _push_blob(client: httpx.Client, repository: str, blob: bytes) -> None:
    digest = sha(blob)
    if client.head(f"/v2/{repository}/blobs/{digest}").status_code == 200:
        return
    place = client.post(f"/v2/{repository}/blobs/uploads/").raise_for_status().headers["Location"]
    joint = "&" if "?" in place else "?"
    headers = {"Content-Type": "application/octet-stream"}
    client.put(f"{place}{joint}digest={digest}", content=blob, headers=headers).raise_for_status()
