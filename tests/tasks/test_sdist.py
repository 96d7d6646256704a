import contextlib
import functools
import hashlib
import http.server
import io
import json
import tarfile
import threading

import pytest
from sdists import make_sdist

from patchwright.errors import ConfigError
from patchwright.tasks.sdist import Requirement, fetch_sdist

MODULE = {"tiny_lib-1.0/src/tiny.py": b"X = 1\n", "tiny_lib-1.0/tests/test_tiny.py": b"def test(): pass\n"}
PINNED = Requirement.parse("tiny.lib==1.0")


def write_index(root, data, digest=None):
    """A PEP 503 index in a folder."""
    (root / "simple/tiny-lib").mkdir(parents=True)
    (root / "files").mkdir()
    (root / "files/tiny_lib-1.0.tar.gz").write_bytes(data)
    digest = digest or hashlib.sha256(data).hexdigest()
    (root / "simple/tiny-lib/index.html").write_text(
        "<a href='../../files/tiny_lib-1.0-py3-none-any.whl'>w</a><A class=x "
        f"href='../../files/tiny_lib-1.0.tar.gz#sha256={digest}'>tiny_lib-1.0.tar.gz</A>"
    )
    return f"file://{root}/simple"


@contextlib.contextmanager
def serving(folder):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def only_our_index(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def unpacked(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_an_index_in_a_folder_named_by_pips_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path, make_sdist(MODULE)))
    folder = fetch_sdist(PINNED, tmp_path / "archive")
    assert folder == tmp_path / "archive/tiny-lib-1.0"
    assert unpacked(folder) == {"src/tiny.py": b"X = 1\n", "tests/test_tiny.py": b"def test(): pass\n"}
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    assert fetch_sdist(PINNED, tmp_path / "archive") == folder, "fetched once"
    assert sorted(p.name for p in (tmp_path / "archive").iterdir()) == ["tiny-lib-1.0"]


def test_an_index_over_http_named_by_pips_file_html_and_json(monkeypatch, tmp_path):
    write_index(tmp_path, make_sdist(MODULE))
    with serving(tmp_path) as url:
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {url}/simple/\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
        fetch_sdist(PINNED, tmp_path / "one")
        address = f"{url}/files/tiny_lib-1.0.tar.gz"
        page = {"files": [{"filename": "tiny_lib-1.0.tar.gz", "url": address, "hashes": {}}]}
        (tmp_path / "simple/tiny-lib/index.html").write_text(json.dumps(page))
        fetch_sdist(PINNED, tmp_path / "two")
    assert unpacked(tmp_path / "one") == unpacked(tmp_path / "two")


def test_find_links_and_extra_indexes_are_looked_at_too(monkeypatch, tmp_path):
    index = write_index(tmp_path, make_sdist(MODULE))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "files"))
    fetch_sdist(PINNED, tmp_path / "one")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"file:///neither {index}")
    fetch_sdist(PINNED, tmp_path / "two")


def test_nothing_of_the_package_runs(monkeypatch, tmp_path):
    setup = f"open({str(tmp_path / 'ran')!r}, 'w')".encode()
    files = {**MODULE, "tiny_lib-1.0/setup.py": setup, "tiny_lib-1.0/backend.py": setup}
    system = b"[build-system]\nrequires=[]\nbuild-backend='backend'\nbackend-path=['.']\n"
    files["tiny_lib-1.0/pyproject.toml"] = system
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path, make_sdist(files)))
    fetch_sdist(PINNED, tmp_path / "archive")
    assert not (tmp_path / "ran").exists()


def test_members_that_lead_out_and_links_are_not_unpacked(monkeypatch, tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        link = tarfile.TarInfo("tiny_lib-1.0/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("tiny_lib-1.0/fine"), io.BytesIO())
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "a", out.getvalue()))
    assert set(unpacked(fetch_sdist(PINNED, tmp_path / "archive"))) == {"fine"}
    evil = make_sdist({"tiny_lib-1.0/../../evil": b"x"})
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "b", evil))
    with pytest.raises(ConfigError, match="is not a sound tar file"):
        fetch_sdist(PINNED, tmp_path / "other/archive")
    assert not list(tmp_path.rglob("evil"))


def test_what_goes_wrong_is_told_in_one_sentence(monkeypatch, tmp_path):
    for text in ("tiny", "tiny>=1", "tiny==1; os", "../x==1", "tiny=="):
        with pytest.raises(ConfigError, match="is not NAME==VERSION"):
            Requirement.parse(text)
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "a", make_sdist(MODULE)))
    with pytest.raises(ConfigError, match=r"no source distribution of tiny-lib-2\.0 in file://"):
        fetch_sdist(Requirement.parse("tiny-lib==2.0"), tmp_path / "x")
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "b", make_sdist(MODULE), digest="0" * 64))
    with pytest.raises(ConfigError, match="does not have the sha256 the index names"):
        fetch_sdist(PINNED, tmp_path / "x")
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "c", b"no tar"))
    with pytest.raises(ConfigError, match="is not a sound tar file"):
        fetch_sdist(PINNED, tmp_path / "x")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        fetch_sdist(PINNED, tmp_path / "x")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "x/tiny-lib-1.0").exists()
