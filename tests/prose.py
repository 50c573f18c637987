"""Check the prose of the repository: words to avoid, errors that a docstring leaves out, arguments without a list.

    python tests/prose.py [PATH...]

Prints one line for each finding, `file:line: finding: remedy`, and exits with 1 when there is one. It reads docstrings,
comments and strings with a blank of Python, and the text of Markdown and YAML outside of code; never identifiers.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("harness", "energymon", "loaders", "joulefeed", "benchmarks", "conf", "docs")
SUFFIXES = (".py", ".md", ".yaml")
MAX_PARAMETERS = 8

_NOT_PROSE = "\0"
_AVOID = {
    r"told": "say 'gets', 'knows' or 'was informed'",
    r"tells?": "say 'says', 'shows', 'reports', 'find out (whether)' or 'distinguish'",
    r"anew": "say 'again'",
    r"whoever": "say 'the process (the user, the caller) that'",
    r"begun": "say 'started'",
    r"(?<!wait )(?<!waits )(?<!asks )(?<!taken )for\s+one(?=\s*[,;:.)+])": "say 'for example'",
    r"for\s+ever": "say 'without end' or 'forever'",
    r"till": "say 'until'",
    r"heed(?:s|ed|ing)?": "say 'follow', 'obey' or 'respect'",
    r"shall": "say 'must' or 'will'",
    r"as\s+long\s+as\s+it\s+takes": "say 'without a limit'",
    r"hand(?:s|ed|ing)?\s+out": "say 'return', 'give' or 'lend'",
    r"what\s+(?:is|was|has\s+been)(?!\s+(?:wrong|missing|next|it|new|there)\b)": "name it: 'the bytes that are …'",
}
_PATTERNS = [(re.compile(rf"\b(?:{word})(?!\w)", re.I), remedy) for word, remedy in _AVOID.items()]
# Errors of the language that a reader expects without a word.
_UNDERSTOOD = {"NotImplementedError", "AssertionError", "StopIteration", "SystemExit", "KeyboardInterrupt"}

Finding = tuple[int, str]


def main(arguments: list[str] | None = None) -> int:
    """Check the files and folders of a command line, or all rooms; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files or folders; all rooms without one")
    paths = parser.parse_args(arguments).paths or [*map(Path, ROOMS), *sorted(Path().glob("*.md"))]
    if missing := [str(path) for path in paths if not path.exists()]:
        parser.error(f"no such file or folder: {', '.join(missing)}")
    count = 0
    for path in files_in(paths):
        for line, finding in sorted(findings(path)):
            count += 1
            print(f"{path}:{line}: {finding}")
    return 1 if count else 0


def files_in(paths: list[Path]) -> Iterator[Path]:
    """Yield the files to check: those given, and Python, Markdown and YAML in folders."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
        else:
            yield path


def findings(path: Path) -> list[Finding]:
    """Return what is wrong with a file, with its lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return words_to_avoid(_markup_prose(text))
    return words_to_avoid(_python_prose(text)) + undocumented(ast.parse(text))


def words_to_avoid(prose: str) -> list[Finding]:
    """Return the words to avoid in a text."""
    found = []
    for pattern, remedy in _PATTERNS:
        for match in pattern.finditer(prose):
            words = " ".join(match[0].split())
            if not _asks(prose, match):
                line = prose.count("\n", 0, match.end()) + 1
                found.append((line, f"'{words}' is a word to avoid: {remedy}"))
    return found


def _asks(prose: str, match: re.Match[str]) -> bool:
    """Whether 'what is' begins a question."""
    end = re.compile(rf"[.?{_NOT_PROSE}]").search(prose, match.end())
    return match[0].lower().startswith("what") and end is not None and end[0] == "?"


def _python_prose(text: str) -> str:
    """Return comments and strings with a blank, everything else as characters that no pattern matches."""
    lines = text.splitlines(keepends=True)
    masked = [[c if c.isspace() else _NOT_PROSE for c in line] for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name not in {"COMMENT", "STRING", "FSTRING_MIDDLE"}:
            continue
        body = token.string
        if name == "STRING":
            if " " not in body.strip("rbfuRBFU'\""):
                continue
            if re.match(r"[rbu]*f", body, re.I):
                body = re.sub(r"\{[^{}]*\}", lambda field: _NOT_PROSE * len(field[0]), body)
            # Quotes and prefix become blanks: a text in several strings reads as one.
            body = re.sub(
                r"^[rbfuRBFU]*(?:\"{3}|'{3}|\"|')|(?:\"{3}|'{3}|\"|')$", lambda quote: " " * len(quote[0]), body
            )
        elif name == "COMMENT":
            body = " " + body[1:]
        body = re.sub(r"`[^`\n]*`", lambda code: _NOT_PROSE * len(code[0]), body)
        row, column = token.start[0] - 1, token.start[1]
        for character in body:
            if character == "\n":
                row, column = row + 1, 0
            elif row < len(masked) and column < len(masked[row]):
                masked[row][column] = character
                column += 1
    return "".join("".join(line) for line in masked)


def _markup_prose(text: str) -> str:
    """Return Markdown or YAML with code and keys as characters that no pattern matches; comments lose their sign."""
    hidden = re.compile(r"^```.*?^```|`[^`\n]*`|^[ \t-]*[\w.@/+-]+:(?=\s)|\]\([^)\s]*\)", re.M | re.S)
    text = hidden.sub(lambda code: re.sub(r"\S", _NOT_PROSE, code[0]), text)
    return re.sub(r"^(\s*)#", r"\1 ", text, flags=re.M)


def undocumented(module: ast.Module) -> list[Finding]:
    """Return public functions whose docstrings leave out an error, or an argument where there are more than eight."""
    found: list[Finding] = []

    def visit(node: ast.Module | ast.ClassDef, docstrings: list[str]) -> None:
        docstrings = [*docstrings, ast.get_docstring(node) or ""]
        for child in node.body:
            if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                visit(child, docstrings)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                own = [*docstrings, ast.get_docstring(child) or ""]
                if not child.name.startswith("_"):
                    found.extend(_unnamed_errors(child, " ".join(own)))
                if not child.name.startswith("_") or child.name == "__init__":
                    found.extend(_unlisted_arguments(child, "\n".join(own)))

    visit(module, [])
    return found


def _unnamed_errors(function: ast.FunctionDef | ast.AsyncFunctionDef, docstring: str) -> Iterator[Finding]:
    seen: set[str] = set()
    nodes: list[ast.AST] = list(function.body)
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = raised.attr if isinstance(raised, ast.Attribute) else getattr(raised, "id", "")
            # A lower-case name is a variable or a function: what it raises cannot be seen here.
            if name[:1].isupper() and name not in _UNDERSTOOD | seen and not re.search(rf"\b{name}\b", docstring):
                seen.add(name)
                yield (
                    node.lineno,
                    f"{function.name} raises {name}: name it in the docstring of function, class or module",
                )


def _unlisted_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef, docstring: str) -> Iterator[Finding]:
    given = function.args
    positional = given.posonlyargs + given.args
    names = [one.arg for one in positional + given.kwonlyargs if one.arg not in {"self", "cls"}]
    if len(names) <= MAX_PARAMETERS:
        return
    optional = {one.arg for one in positional[len(positional) - len(given.defaults) :]}
    optional |= {one.arg for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value is not None}
    _, _, listed = docstring.partition("Args:")
    entries = {name: text for name, text in re.findall(r"^ +(\w+):((?:.|\n)*?)(?=^ +\w+:|\n\n|\Z)", listed, re.M)}
    if unlisted := [name for name in names if name not in entries]:
        yield function.lineno, f"{function.name} has {len(names)} parameters: list under Args: {', '.join(unlisted)}"
    if without := [name for name in names if name in entries and name in optional and "default" not in entries[name]]:
        yield function.lineno, f"{function.name}: say 'default …' under Args: for {', '.join(without)}"


if __name__ == "__main__":
    sys.exit(main())
