"""Makes source distributions for the tests of `tasks.sdist` and `tasks.pypi`."""

import io
import tarfile


def make_sdist(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()
