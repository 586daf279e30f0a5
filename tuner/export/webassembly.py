"""Write an exported network as a static library for WebAssembly, and as a module that a program loads. Start at
`link_module`.

No objcopy makes symbols of WebAssembly's object files local, so `with_local_symbols` changes their table itself. Its
layout is described in "WebAssembly Object File Linking" (WebAssembly/tool-conventions, Linking.md), and the layout of
sections and numbers in the WebAssembly Core Specification (chapter 5, Binary Format).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.errors import BadInput
from tuner.export.compiling import Code, compile_all, run_tool, zig_command

_TARGET = "wasm32-wasi"
_FLAGS = ("-O2", "-std=gnu11", "-ffunction-sections", "-fno-exceptions")
_STACK = 1 << 20  # bytes; kernels keep small buffers there
_MEMORY = ("malloc", "free", "aligned_alloc")  # with which a program makes room for weights, inputs and outputs
# Kinds of sections, of parts of the section "linking", and of symbols, and the flags of these.
_CUSTOM, _SYMBOL_TABLE = 0, 8
_FUNCTION, _DATA, _SECTION = 0, 1, 3
_WEAK, _LOCAL, _UNDEFINED, _NAMED = 0x1, 0x2, 0x10, 0x40


def find_zig() -> tuple[str, ...]:
    """Return the command of zig. Raises BadInput if there is none."""
    zig = zig_command()
    if zig is None:
        raise BadInput("an export for wasm32 needs zig: pip install ziglang")
    return zig


def link_module(code: Code, folder: Path, zig: Sequence[str], *, flags: Sequence[str] = ()) -> None:
    """Write lib`name`.a and `name`.wasm to a folder with zig's compiler and linker. `flags` are more flags of the
    compiler.

    The module exports the functions and tables of the network's header, and malloc, aligned_alloc and free. A program
    has to call its function `_initialize` first. Raises BadInput if a tool fails.
    """
    name, compiler = code.name, [*zig, "cc", "-target", _TARGET]
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        objects = compile_all(code, work, [*compiler, *_FLAGS, *flags], ("alone.c",))
        whole = work / "whole.o"
        run_tool([*zig, "wasm-ld", "-r", "--strip-debug", "-o", str(whole), *objects])
        content, public = with_local_symbols(whole.read_bytes(), f"{name}_")
        whole.write_bytes(content)
        archive = folder / f"lib{name}.a"
        archive.unlink(missing_ok=True)
        run_tool([*zig, "ar", "rcsD", str(archive), str(whole)])
        options = ["-mexec-model=reactor", "-Wl,-s", f"-Wl,-z,stack-size={_STACK}"]
        exported = [f"-Wl,--export={symbol}" for symbol in (*public, *_MEMORY)]
        run_tool([*compiler, *options, *exported, "-o", str(folder / f"{name}.wasm"), str(whole)])


def with_local_symbols(content: bytes, prefix: str) -> tuple[bytes, list[str]]:
    """Make all symbols of an object file local that it defines and whose names do not begin with a prefix. Return the
    object file and the names of the other symbols that it defines.

    Raises ValueError if it is none of WebAssembly.
    """
    changed, public = bytearray(content), list[str]()
    for at, flags, name in _symbols(content):
        if flags & (_UNDEFINED | _LOCAL):
            continue
        if name.startswith(prefix):
            public.append(name)
        else:
            changed[at] = changed[at] & ~_WEAK | _LOCAL
    return bytes(changed), public


class _Reader:
    """Reads numbers and names of a file from a place on."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content, self.at = content, at

    def number(self) -> int:
        """Read an unsigned number in LEB128."""
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def name(self) -> str:
        length = self.number()
        self.at += length
        return self.content[self.at - length : self.at].decode()

    def parts(self, end: int) -> Iterator[tuple[int, int]]:
        """Yield the kind and the end of every part that follows, up to `end`, with the reader at its content."""
        while self.at < end:
            kind, size = self.number(), self.number()
            follows = self.at + size
            yield kind, follows
            self.at = follows


def _symbols(content: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield where the flags of every function and datum with a name are in an object file, these flags and the name."""
    if content[:8] != b"\0asm\1\0\0\0":
        raise ValueError("this is no object file of WebAssembly")
    reader = _Reader(content, 8)
    for section, section_end in reader.parts(len(content)):
        if section != _CUSTOM or reader.name() != "linking":
            continue
        reader.number()  # the version
        for part, _ in reader.parts(section_end):
            if part == _SYMBOL_TABLE:
                yield from _table(reader)


def _table(reader: _Reader) -> Iterator[tuple[int, int, str]]:
    for _ in range(reader.number()):
        kind = reader.number()
        at, flags = reader.at, reader.number()
        name = ""
        if kind == _DATA:
            name = reader.name()
            for _ in range(0 if flags & _UNDEFINED else 3):  # segment, offset and size
                reader.number()
        else:
            reader.number()  # the index
            if kind != _SECTION and (not flags & _UNDEFINED or flags & _NAMED):
                name = reader.name()
        if kind in (_FUNCTION, _DATA):
            yield at, flags, name
