#!/usr/bin/env bash
# Installs what is missing for the purposes named as arguments: build, test, figures. Never asks.
# Without root or apt-get it names what is missing, and fails.
source "$(dirname "$0")/common.sh"

missing_tools() { # prints "tool:package" for each tool that isn't there
    local pair
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || printf '%s\n' "$pair"
    done
}

install_for() { # install_for PURPOSE tool:package...
    local purpose=$1 missing packages
    shift
    missing=$(missing_tools "$@")
    [ -z "$missing" ] && return 0
    packages=$(printf '%s\n' "$missing" | cut -d : -f 2 | sort -u | tr '\n' ' ')
    if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
        die "missing for $purpose: $(printf '%s' "$missing" | cut -d : -f 1 | tr '\n' ' '); install the packages: $packages"
    fi
    say "installing for $purpose: $packages"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    apt-get install -y -q --no-install-recommends $packages >/dev/null 2>&1 ||
        { apt-get update -q >/dev/null 2>&1 && apt-get install -y -q --no-install-recommends $packages >/dev/null; } ||
        die "apt-get could not install: $packages"
    missing=$(missing_tools "$@")
    [ -z "$missing" ] || die "still missing for $purpose after installing $packages: $(printf '%s' "$missing" | cut -d : -f 1 | tr '\n' ' ')"
}

check_rust() {
    local wanted have
    command -v cargo >/dev/null 2>&1 && command -v rustc >/dev/null 2>&1 ||
        die "cargo is missing: install Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or later with rustup (components rustfmt and clippy)"
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(rustc --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ] || die "rustc $have is older than $wanted: rustup update"
}

# Where qemu-storage-daemon lives depends on the release: qemu-utils, or qemu-system-common before that.
storage_daemon_package() {
    command -v qemu-storage-daemon >/dev/null 2>&1 && return
    if apt-cache show qemu-utils 2>/dev/null | grep -q 'qemu-storage-daemon'; then
        printf 'qemu-utils'
        return
    fi
    case $(sed -n 's/^VERSION_ID="\{0,1\}\([0-9]*\).*/\1/p' /etc/os-release) in
    11 | 12 | 22) printf 'qemu-system-common' ;;
    *) printf 'qemu-utils' ;;
    esac
}

[ $# -gt 0 ] || set -- build
for purpose in "$@"; do
    case $purpose in
    build) check_rust && install_for building cc:build-essential make:make pkg-config:pkg-config ;;
    test)
        install_for 'the power-cut tests' "qemu-storage-daemon:$(storage_daemon_package)" fusermount3:fuse3 losetup:mount \
            mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs
        ;;
    figures) install_for 'the figures' fio:fio ;;
    *) die "unknown purpose: $purpose" ;;
    esac
done
