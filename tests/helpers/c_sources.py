"""The signatures of the C kernels and their structs, as the C sources declare them."""

import re
from typing import NamedTuple

from fairseq_sparse.ops.cpu import build

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(
    r"^(void|int|int64_t) (\w+)\(([^)]*)\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
_STRUCT = re.compile(r"^typedef struct \{([^{}]*)\} (\w+);", re.MULTILINE)


class Function(NamedTuple):
    """A function that the library exports."""

    result: str
    parameters: list[tuple[str, str]]  # name, and type without const: "float *", "int64_t"
    body: str


def _sources() -> list[str]:
    return [_COMMENT.sub("", (build.FOLDER / name).read_text()) for name in build.SOURCES]


def functions() -> dict[str, Function]:
    """Return the kernels by name: all functions that are not static, of more than one line."""
    return {
        name: Function(result, [_declaration(x) for x in parameters.split(",")], body)
        for code in _sources()
        for result, name, parameters, body in _FUNCTION.findall(code)
    }


def structs() -> dict[str, list[tuple[str, str]]]:
    """Return the name and type of each field of the structs: "int64_t", "int64_t[3]"."""
    return {name: _fields(body) for code in _sources() for body, name in _STRUCT.findall(code)}


def _fields(body: str) -> list[tuple[str, str]]:
    fields = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        kind, names = declaration.removeprefix("const ").split(maxsplit=1)
        for name in names.split(","):
            star, name, length = re.fullmatch(r"\s*(\*?)(\w+)(\[\d+\])?", name).groups()
            fields.append((name, kind + (" *" if star else "") + (length or "")))
    return fields


def _declaration(parameter: str) -> tuple[str, str]:
    (field,) = _fields(parameter)
    return field
