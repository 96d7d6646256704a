"""Layers unpacked: as an overlay needs them, and without harm when they mean it."""

import gzip
import io
import os
import stat
import tarfile
from pathlib import Path

import pyarrow
import pytest
from tests.images.image_maker import entry, folder, hard, layer, link, sha

from patchwright.errors import ImageError
from patchwright.images.unpack import OPAQUE, is_whiteout, unpack

MIB = 1 << 20


def unpacked(tmp_path: Path, tar: bytes, *, limit: int = 100 * MIB) -> Path:
    blob, into = tmp_path / "blob", tmp_path / "layer"
    blob.write_bytes(tar)
    into.mkdir()
    unpack(blob, into, limit=limit, stopped=lambda: False)
    return into


def test_files_keep_mode_time_content_and_links(tmp_path: Path):
    tar = layer(
        folder("a", 0o500),
        entry("a/run", "#!/bin/sh\n", mode=0o4755),
        entry("a/secret", "s", mode=0o000, uid=1234),
        hard("a/again", "a/run"),
        link("a/there", "/etc/passwd"),
        entry("b/\udcffodd\nname", "x"),
    )
    root = unpacked(tmp_path, tar)
    assert (root / "a/run").read_text() == "#!/bin/sh\n"
    about = (root / "a/run").stat()
    assert stat.S_IMODE(about.st_mode) == 0o755 and about.st_mtime == 1_600_000_000
    assert about.st_ino == (root / "a/again").stat().st_ino
    assert (root / "a/secret").stat().st_uid == os.getuid()
    assert stat.S_IMODE((root / "a/secret").stat().st_mode) == 0o400
    assert (
        stat.S_IMODE((root / "a").stat().st_mode) == 0o700 and (root / "a").stat().st_mtime == 1_600_000_000
    )
    assert (root / "a/there").readlink() == Path("/etc/passwd")
    assert (root / "b/\udcffodd\nname").read_text() == "x"


def test_compressed_or_not_the_digest_is_that_of_the_tar(tmp_path: Path):
    tar = layer(entry("f", b"x" * 100_000)) + b"\0" * 5000
    plain, packed, squeezed = tmp_path / "plain", tmp_path / "gz", tmp_path / "zst"
    plain.write_bytes(tar)
    packed.write_bytes(gzip.compress(tar[:6000]) + gzip.compress(tar[6000:]))
    with pyarrow.CompressedOutputStream(str(squeezed), "zstd") as out:
        out.write(tar)
    for number, blob in enumerate((plain, packed, squeezed)):
        into = tmp_path / str(number)
        into.mkdir()
        digest, size = unpack(blob, into, limit=MIB, stopped=lambda: False)
        assert digest == sha(tar) and size == 102_400
        assert (into / "f").stat().st_size == 100_000


def test_deletions_become_what_an_overlay_knows(tmp_path: Path):
    root = unpacked(tmp_path, layer(entry("d/.wh.gone"), entry("o/.wh..wh..opq"), entry("o/new", "n")))
    assert is_whiteout((root / "d/gone").stat()) and not (root / "d/.wh.gone").exists()
    assert {name for name in OPAQUE if name in os.listxattr(root / "o")}
    assert (root / "o/new").read_text() == "n" and [path.name for path in (root / "o").iterdir()] == ["new"]


@pytest.mark.parametrize("name", ["../out", "a/../../out", "a/.."])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str):
    with pytest.raises(ImageError, match="leads out"):
        unpacked(tmp_path, layer(entry(name, "x")))
    assert not (tmp_path / "out").exists()


def test_links_never_lead_out(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "f").write_text("mine")
    root = unpacked(
        tmp_path,
        layer(
            link("abs", str(victim)),
            entry("abs/new", "x"),
            link("up", "../../../.."),
            entry("up/other", "y"),
            folder("d/e", 0o777),
            link("d", str(tmp_path)),  # takes the place of a folder whose mode is still to be set
            entry("/absolute", "z"),
            link("hop", "abs"),
            entry("hop/third", "t"),
        ),
    )
    assert [path.name for path in victim.iterdir()] == ["f"] and (victim / "f").read_text() == "mine"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o700
    inside = root / str(victim).lstrip("/")
    assert (inside / "new").read_text() == "x" and (inside / "third").read_text() == "t"
    assert (root / "other").read_text() == "y" and (root / "absolute").read_text() == "z"


def test_hard_links_to_nowhere_and_links_in_circles_are_refused(tmp_path: Path):
    for number, tar in enumerate(
        [layer(hard("h", "/etc/passwd")), layer(link("a", "b"), link("b", "a"), entry("a/x", "y"))]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(ImageError, match="links"):
            unpacked(place, tar)


def test_devices_and_pipes_are_left_out(tmp_path: Path):
    kinds = {"chr": tarfile.CHRTYPE, "blk": tarfile.BLKTYPE, "fifo": tarfile.FIFOTYPE}
    root = unpacked(
        tmp_path, layer(*(entry(name, type=kind) for name, kind in kinds.items()), entry("f", "x"))
    )
    assert [path.name for path in root.iterdir()] == ["f"]


def test_bombs_are_stopped(tmp_path: Path):
    def refused(name: str, tar: bytes) -> None:
        place = tmp_path / name
        place.mkdir()
        with pytest.raises(ImageError):
            unpacked(place, tar, limit=MIB)

    refused("long", gzip.compress(layer(entry("f", b"\0" * (4 * MIB)))))
    refused("many", layer(*(entry(f"f{number}") for number in range(300))))
    refused("tail", gzip.compress(layer(entry("f", "x")) + b"\0" * (4 * MIB)))
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    refused("header", header.tobuf())
    refused("garbage", b"no tar at all" * 100)
    sparse = io.BytesIO()
    sparse.write(layer(entry("f", b"x" * 2000))[:1000])
    refused("cut", sparse.getvalue())


def test_giving_up_ends_it(tmp_path: Path):
    (tmp_path / "blob").write_bytes(layer(entry("f", "x")))
    (tmp_path / "into").mkdir()
    with pytest.raises(ImageError, match="stopped"):
        unpack(tmp_path / "blob", tmp_path / "into", limit=MIB, stopped=lambda: True)


def test_later_entries_replace_earlier_ones(tmp_path: Path):
    root = unpacked(
        tmp_path,
        layer(
            entry("a/deep/f", "1"), entry("a", "file now"), entry("x", "1"), folder("x"), entry("x/y", "2"),
            link("l", "x"), entry("l/z", "3"), folder("l"), entry("l/z", "4"),
        ),
    )  # fmt: skip
    assert (root / "a").read_text() == "file now" and (root / "x/y").read_text() == "2"
    assert (root / "x/z").read_text() == "3" and (root / "l/z").read_text() == "4"
