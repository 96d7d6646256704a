"""Images from files and into files: OCI layouts, `docker save`, and a real engine that loads ours."""

import asyncio
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.images.image_maker import Made, entry, folder, hard, layer, link, sha
from tests.images.image_pulling import merged, pull, pulled

from patchwright.errors import ConfigError, ImageError
from patchwright.images.archive import Archive
from patchwright.images.export import export
from patchwright.images.names import Name
from patchwright.images.store import Store

BOTTOM = layer(
    folder("d", 0o711), entry("d/run", "#!/bin/sh\necho hi\n", mode=0o755), hard("d/again", "d/run"),
    link("d/link", "run"), entry("gone", "1"), entry("o/old", "1"), entry("ünï\nx", "odd"),
)  # fmt: skip
TOP = layer(entry(".wh.gone"), entry("o/.wh..wh..opq"), entry("o/new", "2"))
SEEN = ["d/again", "d/run", "o/new", "ünï\nx"]
NAME = Name.parse("arch/x:1")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def packed(folder: Path) -> Path:
    """The same, as one file."""
    file = folder.with_suffix(".tar")
    with tarfile.open(file, "w") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, path.relative_to(folder), recursive=False)
    return file


def archives(tmp_path: Path) -> list[Path]:
    made = Made([BOTTOM, TOP])
    layout = made.layout(tmp_path / "layout", str(NAME))
    saved = made.docker_save(tmp_path / "saved.tar", "arch/x:1")
    subprocess.run(["gzip", "-k", saved], check=True)
    return [layout, packed(layout), saved, tmp_path / "saved.tar.gz"]


def test_layouts_and_saved_images_are_read(tmp_path: Path):
    for number, archive in enumerate(archives(tmp_path)):
        store, source = Store(tmp_path / str(number)), Archive(archive)
        assert source.names() == [NAME], archive
        pulled(store, str(NAME), source=source)
        assert merged(store.resolve(NAME).image, tmp_path / "scratch", user_namespace=True) == SEEN
        assert list((store.folder / "blobs/sha256").iterdir()) == []


def test_an_image_without_a_name_takes_the_one_it_is_given(tmp_path: Path, store: Store):
    source = Archive(Made([BOTTOM]).layout(tmp_path / "layout", None))
    assert source.names() == []
    pulled(store, "my/own", source=source)
    assert store.resolve(Name.parse("my/own")).workdir == "/testbed"


def test_what_is_no_archive_or_lies_is_refused(tmp_path: Path, store: Store):
    with pytest.raises(ConfigError, match="--archive"):
        Archive(tmp_path / "none.tar")
    (tmp_path / "junk.tar").write_bytes(b"junk" * 1000)
    with pytest.raises(ConfigError, match="no image archive"):
        Archive(tmp_path / "junk.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"index\.json"):
        Archive(tmp_path / "empty")
    for number, path in enumerate(("../../secret", "/etc/passwd", "missing")):
        bad = tmp_path / str(number)
        bad.mkdir()
        (bad / "manifest.json").write_text(json.dumps([{"Config": path, "RepoTags": None, "Layers": []}]))
        with pytest.raises(ImageError, match="archive"):
            Archive(bad)
    made = Made([BOTTOM])
    layout = made.layout(tmp_path / "spoilt", str(NAME))
    (layout / "blobs/sha256" / sha(made.blobs[0]).removeprefix("sha256:")).write_bytes(TOP)
    assert "unpacks to" in str(pull(store, str(NAME), source=Archive(layout))[str(NAME)])
    many = Archive(Made([TOP]).layout(tmp_path / "other", "other/x"))
    assert pull(store, "any/name", source=many)["docker.io/any/name:latest"] is None


def test_what_is_exported_comes_back_the_same(tmp_path: Path, store: Store):
    pulled(store, str(NAME), source=Archive(archives(tmp_path)[0]))
    file = tmp_path / "out.tar"
    export(store, NAME, file)
    assert [path.name for path in tmp_path.glob("*.tmp")] == []
    again = Store(tmp_path / "again")
    pulled(again, str(NAME), source=Archive(file))
    root = again.resolve(NAME)
    assert merged(root.image, tmp_path / "scratch", user_namespace=os.geteuid() != 0) == SEEN
    assert root.env == store.resolve(NAME).env
    bottom = root.lowers[1]
    assert (bottom / "d/run").stat().st_ino == (bottom / "d/again").stat().st_ino
    assert (bottom / "d/run").stat().st_mode & 0o777 == 0o755
    assert (bottom / "d/run").stat().st_mtime == 1_600_000_000
    other = tmp_path / "twice.tar"
    export(store, NAME, other)
    assert other.read_bytes() == file.read_bytes(), "the same image, the same bytes"
    with pytest.raises(ConfigError, match="images pull"):
        export(store, Name.parse("no/such"), file)


@pytest.mark.docker
def test_docker_loads_what_is_exported(tmp_path: Path, store: Store):
    if os.environ.get("PATCHWRIGHT_DOCKER") != "1":
        pytest.skip("set PATCHWRIGHT_DOCKER=1 to demand a Docker engine")
    from patchwright.sandbox.docker_api import DockerApi, engine_socket

    pulled(store, str(NAME), source=Archive(archives(tmp_path)[0]))
    export(store, NAME, tmp_path / "out.tar")
    loaded = subprocess.run(["docker", "load", "-i", tmp_path / "out.tar"], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    assert "arch/x:1" in loaded.stdout
    subprocess.run(["docker", "save", "arch/x:1", "-o", tmp_path / "saved-by-docker.tar"], check=True)

    async def clean() -> tuple[int, str]:
        api = DockerApi(engine_socket())
        try:
            found = await api.call("GET", "/images/arch/x:1/json")
            await api.call("DELETE", "/images/arch/x:1")
            return found
        finally:
            await api.aclose()

    status, text = asyncio.run(clean())
    assert status == 200 and json.loads(text)["Config"]["WorkingDir"] == "/testbed"
    again = Store(tmp_path / "again")
    pulled(again, str(NAME), source=Archive(tmp_path / "saved-by-docker.tar"))
    assert merged(again.resolve(NAME).image, tmp_path / "scratch", user_namespace=True) == SEEN
