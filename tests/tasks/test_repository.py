import io
import os
import subprocess
import tarfile
import time

import pytest

from patchwright.errors import ConfigError
from patchwright.tasks.repository import repository_archive
from patchwright.tasks.synthesis import SynthesisConfig, synthesize
from patchwright.types import Task, Tests

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
ENV |= {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def task(**fields):
    return Task(id="t", prompt="p", tests=Tests(command="true", fail_to_pass=("a",)), **fields)


def unpack(data, folder):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        tar.extractall(folder, filter="fully_trusted")
    return folder


def git(folder, *arguments):
    done = subprocess.run(["git", *arguments], cwd=folder, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


FILES = {"mod.py": "x = 1\n", "a/b/c.txt": "é\n", "a.b": "1", "a/z": "", "with space": "y\n"}


def test_git_finds_a_clean_repository_with_one_commit_on_main(tmp_path):
    repo = unpack(repository_archive(task(files=FILES)), tmp_path)
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "status", "--porcelain", "--branch").startswith("## main")
    assert git(repo, "fsck", "--strict", "--full") == ""
    assert git(repo, "log", "--all", "--format=%an %s %ad", "--date=short") == "Patchwright Base 2024-01-01\n"
    assert git(repo, "diff", "HEAD") == ""
    assert sorted(git(repo, "ls-files", "-z").split("\0")[:-1]) == sorted(FILES)
    assert git(repo, "remote") == "" and not (repo / ".git/hooks").exists()


def test_the_commands_agents_use_work(tmp_path):
    repo = unpack(repository_archive(task(files=FILES)), tmp_path)
    (repo / "mod.py").write_text("x = 2\n")
    assert "-x = 1\n+x = 2" in git(repo, "diff")
    git(repo, "stash")
    assert (repo / "mod.py").read_text() == "x = 1\n"
    git(repo, "stash", "pop")
    git(repo, "checkout", "-q", "--", "mod.py")
    assert (repo / "mod.py").read_text() == "x = 1\n"
    (repo / "new").write_text("n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "more")
    assert git(repo, "rev-list", "--count", "HEAD") == "2\n"


def test_an_edit_that_keeps_size_and_time_is_still_seen(tmp_path):
    repo = unpack(repository_archive(task(files=FILES)), tmp_path)
    before = (repo / "mod.py").stat()
    (repo / "mod.py").write_text("x = 2\n")
    os.utime(repo / "mod.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert git(repo, "status", "--porcelain") == " M mod.py\n"


def test_equal_files_give_equal_bytes_and_others_another_commit(tmp_path):
    same = repository_archive(task(files=dict(reversed(FILES.items()))))
    assert same == repository_archive(task(files=FILES))
    one = unpack(same, tmp_path / "1")
    two = unpack(repository_archive(task(files={**FILES, "mod.py": "x = 9\n"})), tmp_path / "2")
    assert git(one, "rev-parse", "HEAD") != git(two, "rev-parse", "HEAD")


def folder_archive(root):
    (root / "pkg/.git").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("secret")
    (root / "pkg/.git/HEAD").write_text("secret")
    (root / "pkg/mod.py").write_text("good\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (root / "latin.txt").write_bytes(b"\xe9\xff\x00")
    (root / ".gitattributes").write_text("* text=auto eol=lf\n")
    (root / ".gitignore").write_text("*.txt\n")
    (root / "link").symlink_to("pkg/mod.py")
    (root / "linked").symlink_to("pkg")
    return root


def test_a_folder_is_laid_down_below_the_files_without_its_history(tmp_path):
    root = folder_archive(tmp_path / "lib")
    data = repository_archive(
        task(archive=str(root), files={"pkg/mod.py": "bad\n", "run.sh": "#!/bin/bash\n"})
    )
    repo = unpack(data, tmp_path / "repo")
    assert git(repo, "status", "--porcelain") == "" and git(repo, "fsck", "--strict") == ""
    assert (repo / "pkg/mod.py").read_text() == "bad\n"
    assert (repo / "run.sh").read_text() == "#!/bin/bash\n" and os.access(repo / "run.sh", os.X_OK)
    assert (repo / "latin.txt").read_bytes() == b"\xe9\xff\x00"
    assert str((repo / "link").readlink()) == "pkg/mod.py" and str((repo / "linked").readlink()) == "pkg"
    assert b"secret" not in data and b"good" not in data
    git(repo, "stash", "list")
    git(repo, "checkout", "-q", "--", ".")
    assert (repo / "crlf.txt").read_bytes() == b"a\r\nb\r\n"


def test_a_tar_gives_what_its_folder_gives(tmp_path):
    root = folder_archive(tmp_path / "lib")
    with tarfile.open(tmp_path / "lib.tar.gz", "w:gz") as tar:
        tar.add(root, arcname=".")
    one = repository_archive(task(archive=str(root)))
    two = repository_archive(task(archive=str(tmp_path / "lib.tar.gz")))
    heads = [git(unpack(data, tmp_path / str(i)), "rev-parse", "HEAD") for i, data in enumerate((one, two))]
    assert heads[0] == heads[1]


def test_a_changed_archive_is_read_again(tmp_path):
    root = folder_archive(tmp_path / "lib")
    before = repository_archive(task(archive=str(root)))
    (root / "pkg/mod.py").write_text("better\n")
    assert repository_archive(task(archive=str(root))) != before


def test_nothing_to_lay_down_is_no_archive():
    assert repository_archive(task()) == b""


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", ".git/config", "a/.git/hooks/x", "a//b", "", "."]
)
def test_paths_out_of_the_repository_are_refused(path):
    with pytest.raises(ConfigError, match="not a path inside a repository"):
        repository_archive(task(files={path: "x"}))


def test_a_tar_whose_members_lead_out_is_refused(tmp_path):
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../evil"), io.BytesIO())
    with pytest.raises(ConfigError, match="not a path inside"):
        repository_archive(task(archive=str(tmp_path / "evil.tar")))


def test_an_archive_that_is_missing_or_no_tar_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"task t: archive .*gone cannot be read: No such file"):
        repository_archive(task(archive=str(tmp_path / "gone")))
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(ConfigError, match="not a tar file"):
        repository_archive(task(archive=str(tmp_path / "text")))


def test_a_small_repository_costs_little_cpu():
    tasks = synthesize(SynthesisConfig(sft=200, rl=0, held_out=0, harder=0, seed=91))["sft"]
    started = time.process_time()
    for small in tasks:
        repository_archive(small)
    assert (time.process_time() - started) / len(tasks) < 0.003
