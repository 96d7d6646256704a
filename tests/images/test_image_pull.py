"""Pulling from a real registry, straight and through one that misbehaves."""

import asyncio
import base64
import json
import os
import platform
import time
from pathlib import Path

import pytest
from tests.images.flaky_registry import LOGIN, FlakyRegistry, cut, endless, redirect, refuse, spoil, whole
from tests.images.image_maker import DOCKER_MANIFEST, Made, entry, folder, layer, push_index, sha
from tests.images.image_pulling import Noted, merged, pull, pulled

from patchwright.errors import ConfigError, ImageError
from patchwright.images.credentials import load_credentials
from patchwright.images.names import Name
from patchwright.images.store import Store

BASE = layer(
    folder("bin"), entry("bin/sh", "base"), entry("etc/old", "1"), folder("opt"), entry("opt/a", "1")
)
BIG = os.urandom(600_000)


def top(text: str) -> bytes:
    members = [entry("etc/.wh.old"), entry("opt/.wh..wh..opq"), entry("opt/b", "2"), entry("testbed/f", text)]
    return layer(*members)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def leftovers(store: Store) -> list[str]:
    places = [store.folder / name for name in ("blobs/sha256", "holds", "trash", "locks")]
    found = [path.name for place in places for path in place.iterdir()]
    return found + [path.name for path in (store.folder / "layers/sha256").glob("*.tmp")]


def test_an_image_comes_complete_and_stacks_as_an_overlay(registry: str, store: Store, tmp_path: Path):
    made = Made([BASE, top("hello")])
    made.push(registry, "swebench/one")
    watch = Noted()
    pulled(store, "swebench/one", mirrors=[f"docker.io={registry}"], watch=watch)
    assert watch.finished == ["docker.io/swebench/one:latest"] and watch.came == sum(map(len, made.blobs))
    root = store.resolve(Name.parse("swebench/one"))
    assert [f"sha256:{path.name}" for path in root.lowers] == made.diff_ids[::-1]
    assert root.env == {"PATH": "/bin", "COLOUR": "blue=ish"} and root.workdir == "/testbed"
    for user_namespace in {os.geteuid() != 0, True}:
        seen = merged(root.image, tmp_path / "scratch", user_namespace=user_namespace)
        assert seen == ["bin/sh", "opt/b", "testbed/f"]
    assert leftovers(store) == []


def test_layers_are_fetched_and_kept_once(flaky: FlakyRegistry, store: Store, registry: str):
    names = [f"many/i{number}" for number in range(8)]
    for name in names:
        Made([BASE, layer(entry("f", name))]).push(registry, name)
    flaky.delay = 0.01
    pulled(store, *names, mirrors=[f"docker.io={flaky.url}"], parallel=8)
    assert len(flaky.paths("/blobs/")) == 1 + 8 + 8, (
        "one shared layer, eight of their own, eight configurations"
    )
    usage = store.usage()
    assert len(usage) == 8 and {one.unique for one in usage} == {4096}
    assert store.bytes() == usage[0].size + 7 * 4096
    asked = len(flaky.seen)
    pulled(store, *names, mirrors=[f"docker.io={flaky.url}"])
    assert len(flaky.seen) == asked, "what is there is not asked for again"
    pulled(store, *names, mirrors=[f"docker.io={flaky.url}"], refresh=True)
    assert len(flaky.seen) == asked + 16, "a manifest and a configuration each"


def test_the_list_of_platforms_and_docker_manifests(registry: str, store: Store):
    amd, arm = (Made([layer(entry("f", name))], architecture=name) for name in ("amd64", "arm64"))
    push_index(registry, "multi/x", "latest", arm64=arm, amd64=amd)
    own = arm if platform.machine() == "aarch64" else amd
    Made([BASE], manifest_type=DOCKER_MANIFEST).push(registry, "multi/docker")
    host = registry.removeprefix("http://")
    pulled(store, f"{host}/multi/x", f"{host}/multi/docker")
    assert list(store.resolve(Name.parse(f"{host}/multi/x")).lowers) == [store.layer(own.diff_ids[0])]
    push_index(registry, "multi/s390x", "latest", s390x=arm)
    error = pull(store, f"{host}/multi/s390x")[f"{host}/multi/s390x:latest"]
    assert isinstance(error, ImageError) and "amd64" in str(error)


def test_a_cut_download_goes_on_where_it_stopped(flaky: FlakyRegistry, store: Store, registry: str):
    made = Made([layer(entry("big", BIG))])
    made.push(registry, "cut/x")
    flaky.faults.extend([cut(1.0), cut(0.3), cut(0.5)])  # the first is the configuration's, whole
    watch = Noted()
    pulled(store, "cut/x", mirrors=[f"docker.io={flaky.url}"], watch=watch)
    size = len(made.blobs[0])
    first = int(size * 0.3)
    assert flaky.ranges() == [f"bytes={first}-", f"bytes={first + int((size - first) * 0.5)}-"]
    assert watch.came == size, "nothing came twice"


def test_a_pull_goes_on_where_a_killed_one_stopped(flaky: FlakyRegistry, store: Store, registry: str):
    made = Made([layer(entry("big", BIG))])
    made.push(registry, "killed/x")
    digest = json.loads(made.manifest)["layers"][0]["digest"]
    store.blob(digest).write_bytes(made.blobs[0][:1000])
    half = store.fresh(made.diff_ids[0])
    (half / "junk").write_text("of the dead")
    pulled(store, "killed/x", mirrors=[f"docker.io={flaky.url}"])
    assert flaky.ranges() == ["bytes=1000-"]
    assert [path.name for path in store.layer(made.diff_ids[0]).iterdir()] == ["big"]
    store.prune()
    assert leftovers(store) == []


def test_a_server_without_ranges_and_one_with_rubbish(flaky: FlakyRegistry, store: Store, registry: str):
    made = Made([layer(entry("big", BIG[:200_000]))])
    made.push(registry, "rubbish/x")
    flaky.faults.extend([cut(1.0), cut(0.5), whole])
    pulled(store, "rubbish/x", mirrors=[f"docker.io={flaky.url}"])
    store.prune(names=["docker.io/rubbish/x:latest"])
    flaky.faults.extend([cut(1.0), spoil, spoil])
    pulled(store, "rubbish/x", mirrors=[f"docker.io={flaky.url}"])
    store.prune(names=["docker.io/rubbish/x:latest"])
    flaky.faults.extend([cut(1.0), *[spoil] * 3])
    error = pull(store, "rubbish/x", mirrors=[f"docker.io={flaky.url}"], retries=2)[
        "docker.io/rubbish/x:latest"
    ]
    assert isinstance(error, ImageError) and "digest" in str(error)
    assert store.images() == [] and leftovers(store) == []
    flaky.faults.clear()
    flaky.faults.extend([cut(1.0), endless])
    error = pull(store, "rubbish/x", mirrors=[f"docker.io={flaky.url}"])["docker.io/rubbish/x:latest"]
    assert isinstance(error, ImageError) and "more than" in str(error)
    flaky.manifest_faults.append(spoil)
    error = pull(store, "rubbish/x", mirrors=[f"docker.io={flaky.url}"])["docker.io/rubbish/x:latest"]
    assert isinstance(error, ImageError)
    pulled(store, "rubbish/x", mirrors=[f"docker.io={flaky.url}"])


def test_a_busy_server_is_asked_again_when_it_said(flaky: FlakyRegistry, store: Store, registry: str):
    for name in ("busy/x", "busy/y"):
        Made([BASE]).push(registry, name)
    flaky.manifest_faults.extend([refuse(429, Retry_After="1"), refuse(503)])
    began = time.monotonic()
    pulled(store, "busy/x", "busy/y", mirrors=[f"docker.io={flaky.url}"], parallel=1)
    assert 1.0 <= time.monotonic() - began < 120
    asked = [when for when, path, _ in flaky.seen if "/manifests/" in path]
    assert asked[1] - asked[0] >= 1.0 and len(asked) == 4
    flaky.manifest_faults.extend([refuse(429)] * 3)
    error = pull(store, "busy/x", mirrors=[f"docker.io={flaky.url}"], refresh=True, retries=2)
    assert "429" in str(error["docker.io/busy/x:latest"])


def test_what_is_not_there_is_said_at_once_and_the_others_come(
    flaky: FlakyRegistry, store: Store, registry: str
):
    Made([BASE]).push(registry, "there/x")
    found = pull(store, "not/there", "there/x", mirrors=[f"docker.io={flaky.url}"])
    assert "check the name" in str(found["docker.io/not/there:latest"])
    assert found["docker.io/there/x:latest"] is None
    assert len(flaky.paths("/not/there/")) == 1


def test_the_next_mirror_has_it(flaky: FlakyRegistry, store: Store, registry: str):
    Made([BASE]).push(registry, "second/x")
    flaky.manifest_faults.append(refuse(404))
    pulled(store, "second/x", mirrors=[f"docker.io={flaky.url}", f"docker.io={registry}"])
    assert len(flaky.seen) == 1


def test_tokens_and_logins(flaky: FlakyRegistry, store: Store, registry: str, nobodys_login: Path):
    Made([BASE]).push(registry, "login/x")
    flaky.login = ""
    pulled(store, "login/x", mirrors=[f"docker.io={flaky.url}"])
    assert "scope=repository" in flaky.paths("/token")[0] and len(flaky.paths("/token")) == 1
    flaky.login = LOGIN
    refused = pull(store, "login/x", mirrors=[f"docker.io={flaky.url}"], refresh=True)
    assert "docker login" in str(refused["docker.io/login/x:latest"])
    auth = base64.b64encode(b"ann:s3cret").decode()
    auths = {"auths": {flaky.url: {"auth": auth}, "https://other/v1/": {}}}
    (nobodys_login / "config.json").write_text(json.dumps(auths))
    pulled(store, "login/x", mirrors=[f"docker.io={flaky.url}"], refresh=True)


def test_a_login_for_docker_hub_goes_to_its_registry(nobodys_login: Path):
    auths = {"https://index.docker.io/v1/": {"auth": "YTpi"}, "ghcr.io": {"auth": "YTpi"}, "helped.io": {}}
    (nobodys_login / "config.json").write_text(json.dumps({"auths": auths, "credsStore": "x"}))
    assert load_credentials() == {"registry-1.docker.io": "Basic YTpi", "ghcr.io": "Basic YTpi"}
    for junk in ("[]", "{", '{"auths": {"a": {"auth": "é"}}}'):
        (nobodys_login / "config.json").write_text(junk)
        with pytest.raises(ConfigError, match="log in again"):
            load_credentials()


def test_plain_http_stays_on_this_machine(flaky: FlakyRegistry, store: Store, registry: str):
    Made([BASE]).push(registry, "plain/x")
    with pytest.raises(ConfigError, match="--insecure"):
        pull(store, "plain/x", mirrors=["docker.io=http://192.0.2.1"])
    flaky.faults.append(redirect("http://192.0.2.1"))
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        pull(store, "plain/x", mirrors=[f"docker.io={flaky.url}"])
    flaky.faults.append(redirect(registry))
    pulled(store, "plain/x", mirrors=[f"docker.io={flaky.url}"])


def test_two_pulls_at_once_do_the_work_once(flaky: FlakyRegistry, store: Store, registry: str):
    Made([layer(entry("f", BIG)), BASE]).push(registry, "twice/x")
    flaky.delay = 0.3

    async def both() -> list[object]:
        keys = {"mirrors": [f"docker.io={flaky.url}"]}
        again = Store(store.folder)
        one, two = (asyncio.to_thread(pull, where, "twice/x", **keys) for where in (store, again))
        return list(await asyncio.gather(one, two))

    assert asyncio.run(both()) == [{"docker.io/twice/x:latest": None}] * 2
    assert len(flaky.paths("/blobs/")) == 2 + 2, "two layers, and each its configuration"
    assert leftovers(store) == []


def test_a_layer_that_is_not_what_its_image_says(registry: str, store: Store):
    made = Made([BASE])
    made.config = made.config.replace(made.diff_ids[0].encode(), b"sha256:" + b"0" * 64)
    lying = json.loads(made.manifest)
    lying["config"].update(digest=sha(made.config), size=len(made.config))
    made.manifest = json.dumps(lying).encode()
    made.push(registry, "lying/x")
    error = pull(store, "lying/x", mirrors=[f"docker.io={registry}"])["docker.io/lying/x:latest"]
    assert isinstance(error, ImageError) and "unpacks to" in str(error)
    store.prune()
    assert store.images() == [] and list((store.folder / "layers/sha256").iterdir()) == []
