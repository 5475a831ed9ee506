"""Pickles of protocol 2, opcode by opcode, with names that need not exist; and their archives."""

import random
import struct
import zipfile
from functools import partial
from pathlib import Path

ARRAYS = ("numpy.core.multiarray", "numpy._core.multiarray")


def name(path: str) -> bytes:
    module, _, attribute = path.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def value(content) -> bytes:
    """Return opcodes that push a value; bytes are opcodes already."""
    if isinstance(content, bytes):
        return content
    if content is None or isinstance(content, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[content]
    if isinstance(content, int):
        digits = content.to_bytes(content.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(digits)]) + digits
    if isinstance(content, str):
        return b"X" + struct.pack("<I", len(content.encode())) + content.encode()
    if isinstance(content, list):
        return b"](" + b"".join(map(value, content)) + b"e"
    if isinstance(content, dict):
        return b"}(" + b"".join(value(part) for pair in content.items() for part in pair) + b"u"
    return b"(" + b"".join(map(value, content)) + b"t"


def call(path: str, *arguments) -> bytes:
    return name(path) + value(arguments) + b"R"


def build(target: bytes, state) -> bytes:
    return target + value(state) + b"b"


def data(content: bytes) -> bytes:
    return call("_codecs.encode", content.decode("latin1"), "latin1")


def dtype(code="f8", order="<", parts=None, *, version=3, flags=0, size=-1, align=-1) -> bytes:
    state = (version, order, parts, None, None, size, align, flags)
    return build(call("numpy.dtype", code, False, True), state)


def array(kind, shape, content, module=ARRAYS[1], *, of="numpy.ndarray", version=1) -> bytes:
    empty = call(f"{module}._reconstruct", name(of), (0,), data(b"b"))
    return build(empty, (version, shape, kind, False, content))


def storage(size=6, kind="torch.FloatStorage", key="0") -> bytes:
    return value(("storage", name(kind), key, "cpu", size)) + b"Q"


def tensor(size=(2, 3), stride=(3, 1), offset=0, of=None) -> bytes:
    arguments = (of or storage(), offset, size, stride, False, call("collections.OrderedDict"))
    return call("torch._utils._rebuild_tensor_v2", *arguments)


def write(path: Path, content) -> Path:
    """Write an archive like one of ``torch.save``, with one storage of six fp32 numbers."""
    members = {"data.pkl": b"\x80\x02" + value(content) + b".", "data/0": bytes(24)}
    members |= {"byteorder": b"little", "version": b"3\n"}
    with zipfile.ZipFile(path, "w") as archive:
        for member, bytes_ in members.items():
            archive.writestr(f"archive/{member}", bytes_)
    return path


class Fuzzer:
    """Random values: of the kinds above, with some of their parts replaced by random ones."""

    def __init__(self, seed: int, names: list[str]):
        self.random, self.names = random.Random(seed), names

    def value(self, level: int = 0):
        choose = self.random.choice
        makers = [self.atom, lambda: name(choose(self.names))]
        if level < 4:
            makers += [
                lambda: tuple(self.value(level + 1) for _ in range(self.random.randrange(4))),
                lambda: [self.value(level + 1) for _ in range(self.random.randrange(3))],
                lambda: {"a": self.value(level + 1), "_metadata": self.value(level + 1)},
                lambda: call(choose(self.names), *self.some(level)),
                lambda: name(choose(self.names)) + value(tuple(self.some(level))) + b"\x81",
                lambda: build(value(self.value(level + 1)), self.value(level + 1)),
            ]
            for make in (self.dtype, self.array, self.tensor) * 3:
                makers.append(partial(make, level))
        return choose(makers)()

    def atom(self):
        atoms = (None, True, False, 0, 1, -1, 3, 8, 2**62, -(2**63), 2**80, "f8", "O", "O8", "V8")
        atoms += ("<", ">", "|", "i1", "U2", "", "storage", "cpu", data(b""), data(bytes(8)))
        return self.random.choice((*atoms, data(b"\x41" * 8), data(b"\xff" * 16)))

    def some(self, level: int) -> list:
        return [self.value(level + 1) for _ in range(self.random.randrange(4))]

    def or_other(self, usual, level: int):
        return self.value(level + 1) if self.random.random() < 0.15 else usual

    def dtype(self, level: int):
        other = self.or_other
        size, flags = other(-1, level), other(0, level)
        state = (other(3, level), other("<", level), other(None, level), None, other(None, level))
        made = call("numpy.dtype", other("f8", level), False, True)
        return build(made, other((*state, size, other(-1, level), flags), level))

    def array(self, level: int):
        other = self.or_other
        kind, content = other(self.dtype(level), level), other(data(b"\x41" * 8), level)
        if self.random.random() < 0.3:
            return call(f"{self.random.choice(ARRAYS)}.scalar", kind, content)
        return array(kind, other((1,), level), content, self.random.choice(ARRAYS))

    def tensor(self, level: int):
        other = self.or_other
        of = other(storage(other(6, level)), level)
        made = tensor(other((2, 3), level), other((3, 1), level), other(0, level), value(of))
        if self.random.random() < 0.3:
            made = call("torch._utils._rebuild_parameter", made, other(True, level), None)
        return made
