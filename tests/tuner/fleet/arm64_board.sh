#!/usr/bin/env bash
# Makes a board of this machine: Debian for arm64 in a folder, run by qemu's emulation of the processor, with all that
# the agent can use there (NumPy, TVM, pyopencl, PoCL, OpenCL's loader). Its times mean nothing; its answers do.
#   sudo tests/tuner/fleet/arm64_board.sh FOLDER
# Afterwards EDGETUNE_TEST_ARM64=FOLDER lets the tests use it (as root: they change into it).
set -euo pipefail
(($# == 1)) || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "arm64_board.sh: run it as root: it unpacks a system" >&2; exit 1; }
folder=$1
tvm=0.27.0.post1  # as pyproject.toml pins it: a board's runtime reads what the host's compiler writes
# Debian's packages as this machine gets them, unless DEBIAN_MIRROR says another place.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' | sed -n 1p)}
[ -n "$mirror" ] || { echo "arm64_board.sh: this system has no packages of Debian's: set DEBIAN_MIRROR" >&2; exit 1; }

packages=()
command -v qemu-aarch64-static >/dev/null || packages+=(qemu-user-static)
command -v debootstrap >/dev/null || packages+=(debootstrap)
command -v aarch64-linux-gnu-gcc >/dev/null || packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
((${#packages[@]} == 0)) || DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"

# The kernel starts arm64 programs through qemu once it is told so; in a container nobody else does.
binfmt=/proc/sys/fs/binfmt_misc
[ -e $binfmt/register ] || mount -t binfmt_misc none $binfmt
[ -e $binfmt/qemu-aarch64 ] || cat /usr/lib/binfmt.d/qemu-aarch64.conf >$binfmt/register

# "done" is the last thing that is written: a folder without it is begun again.
if [ ! -e "$folder/done" ]; then
    rm -rf "$folder"
    debootstrap --arch=arm64 --variant=minbase \
        --include=python3,python3-venv,ca-certificates,libstdc++6,pocl-opencl-icd,ocl-icd-libopencl1 bookworm "$folder" "$mirror"
    cp /etc/resolv.conf "$folder/etc/"
    # Package registries as this machine reaches them.
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$folder/etc/"
    rm -rf "$folder/etc/ssl/certs"  # links, to be followed here
    cp -rL /etc/ssl/certs "$folder/etc/ssl/certs"
    chroot "$folder" python3 -m venv /board
    chroot "$folder" env $(env | grep -E '^(PIP_|HTTPS?_PROXY|https?_proxy|SSL_CERT_FILE)' || true) \
        /board/bin/pip install -q --no-cache-dir "apache-tvm==$tvm" numpy pyopencl
    touch "$folder/done"
fi
echo "ready: EDGETUNE_TEST_ARM64=$folder"
