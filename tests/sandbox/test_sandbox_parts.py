"""The small parts boxes are made of: output, frames, archives, names."""

import io
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchwright.errors import ConfigError
from patchwright.sandbox import archive, seccomp, wire
from patchwright.sandbox.check_tools import tar_of
from patchwright.sandbox.docker_api import engine_socket
from patchwright.sandbox.docker_container import INSIDE
from patchwright.sandbox.output import HEAD, TAIL, Output, render
from patchwright.sandbox.select import open_backend


def test_what_goes_into_a_docker_box_is_all_that_it_imports():
    """The box has nothing else of this package, and its Python no other packages."""
    program = "import patchwright.sandbox.docker_init, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = {name.split(".")[2] for name in done.stdout.split() if name.startswith("patchwright.sandbox.")}
    assert ours <= set(INSIDE)


@given(st.lists(st.binary(max_size=50_000), max_size=8))
def test_output_keeps_head_and_tail_and_counts_the_rest(chunks):
    output = Output()
    for chunk in chunks:
        output.add(chunk)
    everything = b"".join(chunks)
    head, omitted, tail = output.parts()
    assert head == everything[:HEAD]
    assert len(head) + omitted + len(tail) == len(everything)
    assert everything.endswith(tail) and len(tail) <= TAIL
    assert omitted == max(0, len(everything) - HEAD - TAIL)


def test_rendered_output_says_what_is_missing():
    assert render(b"a\xff", 0, b"\xc3\xa9") == "a\ufffdé"
    assert render(b"a\xc3", 5, b"\xa9b") == "a\ufffd\n[... 5 bytes omitted ...]\n\ufffdb"


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary())), st.integers(1, 40))
def test_frames_survive_any_cut(frames, size):
    stream = b"".join(wire.pack(header, body) for header, body in frames)
    parser = wire.Parser()
    parts = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert [frame for part in parts for frame in parser.feed(part)] == frames


@pytest.mark.parametrize("data", [b"\xff" * 12, wire.pack({}, b"x" * 11), b"\0\0\0\1" + bytes(8) + b"{"])
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(wire.WireError):
        wire.Parser(limit=10).feed(data)


def tar(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            out.addfile(member, io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        tar_of({"../out": b"x"}),
        tar_of({"/out": b"x"}),
        tar(("link", tarfile.SYMTYPE, ".."), ("link/out", tarfile.REGTYPE, "")),
        tar(("out", tarfile.LNKTYPE, "../secret")),
        tar(("link", tarfile.SYMTYPE, ".."), ("out", tarfile.LNKTYPE, "link/secret")),
        tar(("device", tarfile.CHRTYPE, "")),
        tar(("pipe", tarfile.FIFOTYPE, "")),
        b"x" * 2000,
    ],
)
def test_hostile_archives_are_refused(tmp_path, data):
    (tmp_path / "secret").write_text("s")
    (tmp_path / "in").mkdir()
    with pytest.raises(archive.ArchiveError):
        archive.unpack(data, str(tmp_path / "in"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "secret"]


def test_a_file_replaces_a_link_and_does_not_follow_it(tmp_path):
    (tmp_path / "secret").write_text("s")
    (tmp_path / "in").mkdir()
    data = tar(("a", tarfile.SYMTYPE, "../secret"), ("a", tarfile.REGTYPE, ""))
    archive.unpack(data, str(tmp_path / "in"))
    assert (tmp_path / "secret").read_text() == "s"
    assert not (tmp_path / "in" / "a").is_symlink()


def test_an_archive_keeps_modes_links_and_times(tmp_path):
    (tmp_path / "from" / "sub").mkdir(parents=True)
    (tmp_path / "from" / "sub" / "tool").write_text("x")
    (tmp_path / "from" / "sub" / "tool").chmod(0o755)
    os.utime(tmp_path / "from" / "sub" / "tool", (1, 1_000_000))
    (tmp_path / "from" / "dangling").symlink_to("/nowhere/at/all")
    os.link(tmp_path / "from" / "sub" / "tool", tmp_path / "from" / "same")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        out.add(tmp_path / "from", ".")
    (tmp_path / "to").mkdir()
    archive.unpack(buffer.getvalue(), str(tmp_path / "to"))
    tool = (tmp_path / "to" / "sub" / "tool").stat()
    assert (tool.st_mode & 0o777, tool.st_mtime, tool.st_nlink) == (0o755, 1_000_000, 2)
    assert (tmp_path / "to" / "dangling").readlink() == Path("/nowhere/at/all")


def test_a_backend_is_picked_by_name():
    assert [open_backend(name).name for name in ("namespace", "process")] == ["namespace", "process"]
    with pytest.raises(ConfigError, match="namespace, docker, process"):
        open_backend("chroot")
    with pytest.raises(ConfigError, match="takes no image"):
        open_backend("namespace", image="python:3.12")
    for name in ("namespace", "process"):
        with pytest.raises(ConfigError, match=r"keeps no boxes warm \(warm = 2\)"):
            open_backend(name, warm=2)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_system_calls_is_a_sound_program(machine):
    """Every jump of it lands inside, and each way ends in a verdict."""
    program = seccomp.program(machine)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    assert steps[-1][0] == 0x06
    for at, (code, yes, no, _) in enumerate(steps):
        assert code == 0x06 or at + 1 + max(yes, no) < len(steps)
    assert seccomp.program("s390x") == b""


def test_the_engine_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", "unix:///somewhere.sock")
    assert engine_socket() == "/somewhere.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://1.2.3.4:2375")
    with pytest.raises(ConfigError, match="Unix socket"):
        engine_socket()
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    podman = tmp_path / "podman" / "podman.sock"
    podman.parent.mkdir()
    podman.touch()
    docker = Path("/var/run/docker.sock")
    assert engine_socket() == str(docker if docker.exists() else podman)


def test_what_lies_beside_the_rehearsal_is_not_run(tmp_path):
    """Anybody may leave a `conftest.py` in the folder for temporary files."""
    marker = tmp_path / "ran"
    (tmp_path / "conftest.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    code = "from patchwright.sandbox.warm import preload; assert preload(['pytest'])"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not marker.exists()
