"""swebench 4.1.0 as an oracle; run as a script with the folder it and unidiff were unpacked to.

Answers each JSON line (a row) with the official evaluation script; the first line out is the official data.
What the package imports but none of this needs is stood in for by empty shells, and the one download it makes
(requirements, for the environment) by an empty file.
"""

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock


class Shells(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"swebench", "unidiff", *sys.stdlib_module_names}:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        shell = ModuleType(spec.name)
        shell.__getattr__ = self._anything
        return shell

    def exec_module(self, module):
        if module.__name__ == "requests":
            module.get = lambda url, headers=None: SimpleNamespace(status_code=200, text="")

    @staticmethod
    def _anything(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, Shells())
    with contextlib.redirect_stdout(io.StringIO()):
        from swebench.harness import constants
        from swebench.harness.test_spec.test_spec import make_test_spec
    names = (
        "MAP_REPO_VERSION_TO_SPECS",
        "MAP_REPO_TO_EXT",
        "MAP_REPO_TO_REQS_PATHS",
        "MAP_REPO_TO_ENV_YML_PATHS",
    )
    data = {name: getattr(constants, name) for name in names} | {
        "fail_only": sorted(constants.FAIL_ONLY_REPOS)
    }
    print(json.dumps(data), flush=True)
    for line in sys.stdin:
        try:
            print(json.dumps(make_test_spec(json.loads(line)).eval_script), flush=True)
        except Exception as error:
            print(json.dumps({"error": repr(error)}), flush=True)
