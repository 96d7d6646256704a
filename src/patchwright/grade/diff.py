"""A patch as text: cleaned of what models write around it, cut into its files, its paths checked.

Pure, no box. A patch is hostile: what it claims about itself decides nothing but what is refused here;
`grade/patch.py` lets git apply it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

__all__ = ["Diff", "Section", "matcher", "parse", "parse_tests"]

_START = re.compile(r"^(?:diff --git \S|--- [^\n]*\n\+\+\+ )", re.MULTILINE)
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAMED = re.compile(r"(rename from|rename to|copy from|copy to) ")
_LINK = re.compile(r"(?:new file mode|new mode|index [0-9a-f]+\.\.[0-9a-f]+) 120000")
_ESCAPE = re.compile(r'\\([0-7]{1,3}|[abfnrtv"\\])')
_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_INDENTED = re.compile(r"\s+(?:diff --git|---|\+\+\+|Index:|rename|copy) ")


@dataclass(frozen=True, slots=True)
class Section:
    """One file of a patch. Example: `Section(text="diff --git a/m.py b/m.py\\n...", paths=("m.py",))`"""

    text: str
    paths: tuple[str, ...]
    """Every path its headers name, without `a/` and `b/`."""
    link: bool = False
    """Whether it makes a symbolic link."""
    deletes: bool = False
    """Whether it takes the file away."""
    outside: bool = False
    """Whether a header names a path out of the repository, or in its `.git`."""
    indented: bool = False
    """Whether it holds an indented header: text to git, a header to GNU patch."""


@dataclass(frozen=True)
class Diff:
    """A cleaned patch. Example: `parse("Here it is:\\ndiff --git ...").paths == {"mod.py"}`"""

    sections: tuple[Section, ...] = ()
    wanted: bool = False
    """Whether there was anything but white space, before cleaning."""
    cut: bool = False
    """Whether files were left out by `without`."""

    @cached_property
    def text(self) -> str:
        """What is applied: empty, or ending with a newline."""
        return "".join(section.text for section in self.sections)

    @property
    def data(self) -> bytes:
        """The text as written to a file; bytes that were no UTF-8 come back as they were."""
        try:
            return self.text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # half of a surrogate pair: no file has that
            return self.text.encode("utf-8", "replace")

    @property
    def shown(self) -> str:
        """The text for people and reports: UTF-8 throughout."""
        return self.data.decode("utf-8", "replace")

    @cached_property
    def paths(self) -> frozenset[str]:
        """Every path the patch touches."""
        return frozenset(path for section in self.sections for path in section.paths)

    @property
    def outside(self) -> str:
        """A path that leads out of the repository or into `.git`, straight or through a link of the patch
        itself; empty when there is none."""
        links = [path for section in self.sections if section.link for path in section.paths]
        for section in self.sections:
            if section.outside:
                return next((path for path in section.paths), section.text.partition("\n")[0])
            for path in section.paths:
                # a folder may give way to a link: its files are deleted, not written
                if not section.deletes and any(path.startswith(f"{link}/") for link in links):
                    return path
        return ""

    def without(self, globs: Iterable[str]) -> tuple[Diff, tuple[str, ...]]:
        """The patch without the files that match one of the globs, and the paths left out."""
        patterns = [matcher(glob) for glob in globs]
        kept, dropped = [], []
        for section in self.sections:
            hit = [path for path in section.paths if any(found.fullmatch(path) for found in patterns)]
            dropped += hit
            if not hit:
                kept.append(section)
        return Diff(tuple(kept), self.wanted, bool(dropped)), tuple(dict.fromkeys(dropped))


def matcher(glob: str) -> re.Pattern[str]:
    """A glob over whole relative paths: `**/` any folders or none, `*` and `?` within a name.

    Example: `matcher("**/conftest.py").fullmatch("conftest.py")`
    """
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts), re.DOTALL)


def parse(patch: str) -> Diff:
    """Clean a patch and cut it into its files.

    Cleaning is what models make necessary and no more: prose and code fences before the first header go
    (what follows the last hunk, git ignores), a patch sent with CRLF throughout becomes LF, a missing last
    newline is added. A patch *of* a CRLF file has LF headers and stays as it is.
    """
    start = _START.search(patch)
    if start is None:
        return Diff(wanted=bool(patch.strip()))
    body = patch[start.start() :]
    if body.partition("\n")[0].endswith("\r"):
        body = body.replace("\r\n", "\n")
    if not body.endswith("\n"):
        body += "\n"
    return Diff(tuple(_sections(body)), wanted=True)


@lru_cache(maxsize=64)
def parse_tests(patch: str) -> Diff:
    """A task's own test patch, which every grading of the task asks for several times."""
    return parse(patch)


def _sections(body: str) -> Iterator[Section]:
    lines = [f"{line}\n" for line in body.split("\n")[:-1]]
    reader, start = _Reader(), 0
    for number, line in enumerate(lines):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        if number > start and reader.opens(line, after):
            yield reader.section("".join(lines[start:number]))
            reader, start = _Reader(), number
        reader.read(line.removesuffix("\n"))
    yield reader.section("".join(lines[start:]))


class _Reader:
    """Reads one section line by line, hunks by their counts as git does: a removed line `-- x` shows as
    `--- x`, and only the counts tell it from a header."""

    def __init__(self) -> None:
        self._old = self._new = 0  # lines the hunk still owes
        self._marked = False  # `---` was seen
        self._names: list[str] = []
        self._title = ""
        self._link = self._outside = self._indented = self._deletes = False

    def opens(self, line: str, after: str) -> bool:
        """Whether the line begins the next file."""
        if self._in_hunk(line):
            return False
        pair = line.startswith("--- ") and after.startswith("+++ ")
        return line.startswith("diff --git ") or (pair and self._marked)

    def read(self, line: str) -> None:
        """Take in one line."""
        if self._in_hunk(line):
            self._old -= line[:1] in (" ", "-", "")
            self._new -= line[:1] in (" ", "+", "")
            return
        self._old = self._new = 0
        if hunk := _HUNK.match(line):
            self._old, self._new = (int(count) if count is not None else 1 for count in hunk.groups())
        else:
            self._header(line)

    def section(self, text: str) -> Section:
        """What was read."""
        names = self._names or _title_names(self._title)
        return Section(
            text=text,
            paths=tuple(dict.fromkeys(names)),
            link=self._link,
            deletes=self._deletes,
            outside=self._outside,
            indented=self._indented,
        )

    def _in_hunk(self, line: str) -> bool:
        return (self._old > 0 or self._new > 0) and line[:1] in (" ", "+", "-", "\\", "", "\n")

    def _header(self, line: str) -> None:
        self._indented |= _INDENTED.match(line) is not None
        self._link |= _LINK.match(line) is not None
        self._deletes |= line.startswith(("deleted file mode ", "+++ /dev/null"))
        if line.startswith("diff --git "):
            self._title = line.removeprefix("diff --git ")
            self._outside |= _leads_out(self._title)
        elif line.startswith(("--- ", "+++ ", "Index: ")):
            self._marked = True
            self._name(line.partition(" ")[2].partition("\t")[0], prefixed=True)
        elif named := _NAMED.match(line):
            self._name(line[named.end() :], prefixed=False)

    def _name(self, raw: str, *, prefixed: bool) -> None:
        name = _unquoted(raw.rstrip("\r"))
        if name == "/dev/null":
            return
        self._outside |= _leads_out(raw) or name.startswith("/")
        self._names.append(name.partition("/")[2] if prefixed and "/" in name else name)


def _title_names(title: str) -> list[str]:
    """The path of `a/NAME b/NAME`, where both names are one: all there is of an empty, binary or mode-only
    file. Two names that differ come with `rename` or `copy` lines."""
    if title.endswith('"'):
        return [_unquoted(title[title.index('"') :].partition(' "')[0]).partition("/")[2]]
    half = len(title) // 2
    first, second = title[:half], title[half + 1 :]
    return [first.partition("/")[2]] if first.partition("/")[2] == second.partition("/")[2] else []


def _leads_out(raw: str) -> bool:
    """Whether any part of a header is `..` or `.git`, however it is quoted."""
    return any(part.lower() in ("..", ".git") for part in re.split(r'[/\s"]+', _unescaped(raw)))


def _unquoted(name: str) -> str:
    """A name as git writes it: odd ones in C quotes."""
    quoted = len(name) > 1 and name.startswith('"') and name.endswith('"')
    return _unescaped(name[1:-1]) if quoted else name


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    plain = text.encode("utf-8", "replace").decode("latin-1")  # escapes are bytes
    return _ESCAPE.sub(_character, plain).encode("latin-1").decode("utf-8", "surrogateescape")


def _character(found: re.Match[str]) -> str:
    code = found.group(1)
    return chr(int(code, 8) & 0xFF) if code[0].isdigit() else _CONTROL.get(code, code)
