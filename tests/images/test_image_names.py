"""Names, the sources' rules, mirrors and sizes."""

import pytest

from patchwright.errors import ConfigError
from patchwright.images.config import parse_bytes
from patchwright.images.names import Name, image_of
from patchwright.images.registry import mirrored, places

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("alpine", "docker.io/library/alpine:latest"),
        ("a/b", "docker.io/a/b:latest"),
        ("index.docker.io/a/b:1", "docker.io/a/b:1"),
        ("localhost/a", "localhost/a:latest"),
        ("127.0.0.1:5000/a/b:x", "127.0.0.1:5000/a/b:x"),
        ("box:5000/a", "box:5000/a:latest"),
        (f"ghcr.io/a/b@{DIGEST}", f"ghcr.io/a/b@{DIGEST}"),
        ("swebench/sweb.eval.x86_64.d_1776_d-1", "docker.io/swebench/sweb.eval.x86_64.d_1776_d-1:latest"),
        ("x/a__b", "docker.io/x/a__b:latest"),
    ],
)
def test_names_are_read_as_docker_reads_them(given: str, full: str):
    assert str(Name.parse(given)) == full
    assert Name.parse(full) == Name.parse(given)


@pytest.mark.parametrize(
    "given",
    ["", "A/b", "../x", "a/../b", "-rf", "a:b:c", "a b", "http://x/y", "a/b@sha256:1", "x/" * 300 + "y"],
)
def test_what_is_no_name_is_refused(given: str):
    with pytest.raises(ConfigError, match=r"image|letters"):
        Name.parse(given)


def test_the_rules_of_the_sources():
    bench = image_of({"instance_id": "Django__django-11099"}, "swe-bench")
    assert bench == "docker.io/swebench/sweb.eval.x86_64.django_1776_django-11099:latest"
    gym = image_of({"instance_id": "getmoto__moto-4833"}, "swe-gym")
    assert gym == "docker.io/xingyaoww/sweb.eval.x86_64.getmoto_s_moto-4833:latest"
    assert image_of({"instance_id": "a__b-1", "image_name": "mine/own:2"}, "swe-gym") == "mine/own:2"
    Name.parse(bench)
    Name.parse(gym)
    with pytest.raises(ConfigError, match="swe-bench"):
        image_of({"instance_id": "a__b-1"}, "swe-bensh")
    with pytest.raises(ConfigError, match="neither"):
        image_of({"image_name": ""}, "swe-bench")


def test_the_longest_prefix_decides_where_an_image_comes_from():
    mirrors = [
        "docker.io=http://127.0.0.1:1",
        "docker.io/a=https://m.example/proxy/",
        "docker.io/a=https://n.example",
    ]
    known = [tuple(one.rstrip("/").split("=")) for one in mirrors]
    assert places(Name.parse("b/c"), known) == ["http://127.0.0.1:1/v2/b/c"]
    assert places(Name.parse("a/c"), known) == ["https://m.example/v2/proxy/c", "https://n.example/v2/c"]
    assert places(Name.parse("ab/c"), known) == ["http://127.0.0.1:1/v2/ab/c"]
    assert places(Name.parse("ghcr.io/a/c"), known) == ["https://ghcr.io/v2/a/c"]
    assert places(Name.parse("a/c"), []) == ["https://registry-1.docker.io/v2/a/c"]
    assert places(Name.parse("127.0.0.1:5/a"), []) == ["http://127.0.0.1:5/v2/a"]
    assert mirrored(Name.parse("a/c:9"), mirrors) == ["m.example/proxy/c:9", "n.example/c:9"]
    assert mirrored(Name.parse("ghcr.io/a/c"), mirrors) == ["ghcr.io/a/c:latest"]
    with pytest.raises(ConfigError, match="PREFIX=URL"):
        mirrored(Name.parse("a/c"), ["docker.io"])


def test_sizes():
    assert parse_bytes("50GB") == 50 * 10**9 and parse_bytes("1.5 k") == 1500 and parse_bytes("") is None
    with pytest.raises(ConfigError, match="50GB"):
        parse_bytes("lots")
