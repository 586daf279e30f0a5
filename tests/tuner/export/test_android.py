"""Exports for Android, linked by a stand-in for its development kit: zig's clang with musl's headers but for errno's,
and empty libraries that have the names of Android's at API level 24. Nothing is run.

The names are those of Android's documentation of its C library (bionic: docs/status.md, libc.map.txt) that an export's
runtime and its example may use.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tuner.cli.conftest import run_tune
from tests.tuner.tiny_network import write_tiny_network
from tuner.errors import BadInput
from tuner.export.compiling import toolchain_for

LIBRARIES = {
    "c": (
        "__errno", "abort", "aligned_alloc", "bcmp", "calloc", "clock_gettime", "close", "fclose", "fopen", "free",
        "fscanf", "fstat", "getauxval", "lseek", "madvise", "malloc", "memcmp", "memcpy", "memmove", "memset", "mmap",
        "munmap", "open", "posix_memalign", "pthread_atfork", "pthread_cond_broadcast", "pthread_cond_destroy",
        "pthread_cond_init", "pthread_cond_signal", "pthread_cond_wait", "pthread_create", "pthread_detach",
        "pthread_join", "pthread_mutex_destroy", "pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_trylock",
        "pthread_mutex_unlock", "pthread_once", "read", "sched_getaffinity", "sched_setaffinity", "sched_yield",
        "snprintf", "strcmp", "strlen", "strncmp", "syscall", "sysconf",
    ),
    "m": ("erff", "expf", "exp2f", "fmodf", "log10f", "log2f", "logf", "powf", "roundf", "tanhf"),
    "dl": ("dlclose", "dlerror", "dlopen", "dlsym"),
}  # fmt: skip

needs_zig = pytest.mark.skipif(
    find_spec("ziglang") is None or shutil.which("llvm-objcopy") is None, reason="needs ziglang and llvm-objcopy"
)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A folder that is laid out as Android's development kit."""
    tools, libraries = tmp_path / "ndk/toolchains/llvm/prebuilt/linux-x86_64/bin", tmp_path / "ndk/lib"
    tools.mkdir(parents=True)
    libraries.mkdir()
    (libraries / "errno.h").write_text("int *__errno(void);\n#define errno (*__errno())\n#define EINTR 4\n")
    zig = f"{sys.executable} -m ziglang"
    target = f"{zig} cc -target aarch64-linux-musl"
    for name, symbols in LIBRARIES.items():
        source = "".join(f"void {symbol}(void) {{}}\n" for symbol in symbols)
        command = f"{target} -shared -nostdlib -fno-builtin -w -Wl,-soname,lib{name}.so -o lib{name}.so -x c -"
        subprocess.run(command.split(), cwd=libraries, input=source, text=True, check=True)
    clang = tools / "aarch64-linux-android24-clang"
    stubs = " ".join(f"{libraries}/lib{name}.so" for name in LIBRARIES)
    clang.write_text(
        f'#!/bin/sh\ncase " $* " in *" -shared "*) more="-nostdlib -Wl,-z,defs {stubs}" ;; esac\n'
        f'exec {target} -I{libraries} -D__ANDROID__ -D__ANDROID_API__=24 "$@" $more\n'
    )
    (tools / "llvm-ar").write_text(f'#!/bin/sh\nexec {zig} ar "$@"\n')
    (tools / "llvm-objcopy").write_text(f'#!/bin/sh\nexec {shutil.which("llvm-objcopy")} "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return tmp_path / "ndk"


@needs_zig
@pytest.mark.night
def test_an_export_calls_what_android_has(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_network(tmp_path / "tiny.onnx")
    monkeypatch.setenv("ANDROID_NDK_HOME", str(kit))
    done = run_tune("export", "tiny.onnx", "-o", "out", "--target", "aarch64", "--libc", "bionic", cwd=tmp_path)
    assert done.status == 0, done.error
    said = subprocess.run(
        ["readelf", "-dlW", "out/libtiny.so"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    needed = {line.split("[")[1].rstrip("]") for line in said.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so", "libm.so", "libdl.so"}
    aligned = {line.split()[-1] for line in said.splitlines() if line.split()[:1] == ["LOAD"]}
    assert aligned == {"0x4000"}  # as Android 15 asks for


def test_without_the_kit_or_for_another_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with pytest.raises(BadInput, match=r"needs aarch64-linux-android24-clang, .*set ANDROID_NDK_HOME to its folder"):
        toolchain_for("aarch64", "bionic")
    with pytest.raises(BadInput, match="for aarch64 and x86-64, not for riscv64"):
        toolchain_for("riscv64", "bionic")
