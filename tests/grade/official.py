"""The official swebench package as an oracle; run as a script with its unpacked folder as the argument.

Reads requests as JSON lines, answers one line each. What the package imports but grading never calls (docker,
modal, datasets, ...: hundreds of megabytes) is stood in for by empty shells.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock


class Shells(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module that is neither Python's nor the package's own."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"swebench", *sys.stdlib_module_names}:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        shell = ModuleType(spec.name)
        shell.__getattr__ = self._anything
        return shell

    def exec_module(self, module):
        pass

    @staticmethod
    def _anything(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def answer(request: dict) -> dict:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"value": ASK[request["ask"]](request)}
    except Exception as error:
        return {"error": repr(error)[:200]}


def parse(request: dict) -> list:
    spec = SimpleNamespace(instance_id=request["id"], version=request["version"])
    return list(parser(request["parser"])(request["log"], spec).items())


def parser(name: str):
    for language in ("python", "javascript", "c", "go", "java", "php", "ruby", "rust"):
        module = importlib.import_module(f"swebench.harness.log_parsers.{language}")
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


def report(request: dict) -> dict:
    spec = SimpleNamespace(**request["row"])
    prediction = {"instance_id": spec.instance_id, "model_patch": request["patch"]}
    grading = importlib.import_module("swebench.harness.grading")
    return grading.get_eval_report(spec, prediction, request["path"], True)


def repositories(request: dict) -> dict:
    names = {}
    for language, short in {"python": "PY", "javascript": "JS"}.items():
        names |= _parser_names(language, short)
    for language in ("c", "go", "java", "php", "ruby", "rust"):
        names |= _parser_names(language, language.upper())
    return names


def _parser_names(language: str, short: str) -> dict:
    module = importlib.import_module(f"swebench.harness.log_parsers.{language}")
    return {
        repo: function.__name__ for repo, function in getattr(module, f"MAP_REPO_TO_PARSER_{short}").items()
    }


def registry(request: dict) -> list:
    return list(importlib.import_module("swebench.harness.log_parsers").PARSER_REGISTRY)


ASK = {"parse": parse, "report": report, "repositories": repositories, "registry": registry}

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, Shells())
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module("swebench.harness.grading")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))))
