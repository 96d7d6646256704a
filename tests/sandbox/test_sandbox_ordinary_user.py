"""Namespace boxes of an ordinary user, where the kernel lets such a user have them; else it says so."""

import json
import os

import pytest
from image_layers import two_layers
from ordinary_user import USER, run_as_ordinary_user

from patchwright.sandbox.check import CHECKS
from patchwright.sandbox.kernel import obstacles

_REFUSED = "this kernel refuses namespace boxes"
_PROGRAM = """
import asyncio, json, os, sys
from patchwright.sandbox import syscalls
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.check import check_sandbox
from patchwright.sandbox.namespace import NamespaceBackend

async def suite(backend):
    results = await check_sandbox(backend)
    failed = {one.name: one.detail for one in results if not one.ok or one.skipped}
    return {"checks": len(results), "failed": failed}

async def image(backend, layers):
    box = await backend.open(BoxSpec(image=layers, workdir="/srv/repo"))
    await box.exec("rm /etc/top; echo new > /etc/base; echo r > r")
    fork = await box.fork()
    commands = "cat /etc/base r /private/file; ls /etc /srv/old; id -u; stat -c %u /etc/base"
    other = await backend.open(BoxSpec(image=layers))
    return {"fork": (await fork.exec(commands)).output, "other": (await other.exec(commands)).output}

def forbid():
    user = os.geteuid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
    except OSError:
        return  # as it is
    with open("/proc/self/uid_map", "w") as file:
        file.write(f"{user} {user} 1")
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")

async def forbidden(backend):
    raise AssertionError("it made boxes")

async def main(what, *arguments):
    backend = NamespaceBackend()
    try:
        reason = await backend.available()
        found = {} if reason else await globals()[what](backend, *arguments)
    finally:
        await backend.close()
    print(json.dumps({"user": os.geteuid(), "reason": reason, **found}))

if sys.argv[1] == "forbidden":
    forbid()
asyncio.run(main(*sys.argv[1:]))
"""


def as_ordinary_user(*arguments, readable=()):
    found = json.loads(run_as_ordinary_user(_PROGRAM, *arguments, readable=readable))
    assert found["user"] != 0
    if found["reason"] is not None:
        assert _REFUSED in found["reason"] and "--sandbox docker" in found["reason"]
    return found


def test_the_suite_passes_for_an_ordinary_user():
    found = as_ordinary_user("suite")
    assert found["reason"] or (found["checks"] == len(CHECKS) and found["failed"] == {})


def test_an_ordinary_user_has_boxes_of_images(tmp_path):
    layers = two_layers(tmp_path)
    if os.geteuid() == 0:
        for folder, names, files in os.walk(tmp_path):
            for name in (".", *names, *files):
                os.chown(os.path.join(folder, name), USER, USER, follow_symlinks=False)  # noqa: PTH118
    found = as_ordinary_user("image", layers, readable=[tmp_path])
    if not found["reason"]:
        etc = "/etc:\nbase\nhosts\npasswd\nresolv.conf\n"
        assert found["fork"] == f"new\nr\nowned\n{etc}\n/srv/old:\ninherited\n0\n0\n"
        assert found["other"].startswith("base\n") and f"{etc}top\n" in found["other"]


def test_a_kernel_that_forbids_is_named_with_the_mend():
    reason = as_ordinary_user("forbidden")["reason"]
    assert reason
    if not obstacles(root=False):
        assert "user.max_user_namespaces is 0" in reason and "sysctl -w user.max_user_namespaces" in reason


@pytest.mark.parametrize(
    ("name", "value", "for_root", "for_others"),
    [
        ("user/max_user_namespaces", "0", True, True),
        ("user/max_user_namespaces", "63000", False, False),
        ("kernel/unprivileged_userns_clone", "0", False, True),
        ("kernel/unprivileged_userns_clone", "1", False, False),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", False, True),
        ("kernel/apparmor_restrict_unprivileged_userns", "0", False, False),
        ("kernel/unprivileged_userns_clone", "no number", False, False),
    ],
)
def test_settings_in_the_way(tmp_path, name, value, for_root, for_others):
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text(f"{value}\n")
    for root, wanted in ((True, for_root), (False, for_others)):
        found = obstacles(root=root, sysctl=tmp_path)
        assert bool(found) == wanted
        assert all(name.replace("/", ".") in one.what and "sysctl -w" in one.mend for one in found)
