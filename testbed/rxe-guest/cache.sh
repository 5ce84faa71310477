# shellcheck shell=bash
# The guest's cache: Debian's stock kernel, unpacked, with the initramfs made from it. Sourced by `run`.
#
# One directory per kernel package and version of the scripts that build it:
#   vmlinux      the kernel, uncompressed: that saves the guest seconds of unpacking itself
#   initramfs    busybox, guest/init, and the modules it loads
#   release      the kernel's release, as uname -r gives it
#   root/        the unpacked package; the guest loads further modules from it
# It is built beside its place and moved there when whole, so what has the name is complete.
# A guest holds a shared lock on its directory; an older one is removed when nobody does.

# shellcheck disable=SC2154  # `here` and `die`, `say` are the caller's
cache_root=${XDG_CACHE_HOME:-$HOME/.cache}/dta/rxe-guest

# shellcheck disable=SC2034  # used by name, in initramfs_make
# Modules that the guest needs before it can see the host's files: loaded in this order, each after what it depends on.
boot_modules=(virtio_pci virtio_mmio 9pnet_virtio 9p overlay virtio_console)
# Modules of the ready device. Without crc32_generic, `rdma link add` fails with ENOENT.
# shellcheck disable=SC2034
rxe_modules=(crc32_generic veth rdma_rxe ib_uverbs rdma_ucm)

# Prints "package version" of the kernel that linux-image-amd64 stands for, or nothing where apt does not know it.
# The cloud kernel would be smaller, but has neither rdma_rxe nor 9p.
kernel_package() {
    local package version
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
    [[ $package ]] || return 0
    version=$(apt-cache policy "$package" | sed -n 's/^ *Candidate: //p')
    [[ $version && $version != "(none)" ]] && echo "$package $version"
    return 0
}

# cache_find: sets `cache` to the directory for the current package, building it if it is not there yet,
# and holds a shared lock on it until the caller exits.
cache_find() {
    local package version scripts
    if [[ $(dpkg --print-architecture) != amd64 ]]; then
        die "the guest is made for amd64, and this is $(dpkg --print-architecture)"
    fi
    read -r package version < <(kernel_package) || true
    mkdir -p "$cache_root"
    # What is built depends on these scripts as well as on the package.
    scripts=$(cat "$here/cache.sh" "$here"/guest/* | sha256sum | cut -c 1-12)

    if [[ ! ${package-} ]]; then
        # No package lists, as in an offline container: the newest cache of these scripts will do.
        cache=$(find "$cache_root" -mindepth 1 -maxdepth 1 -type d -name "linux-image-*_$scripts" -printf '%T@ %p\n' | sort -rn | sed -n '1s/^[^ ]* //p')
        [[ $cache ]] || die "apt knows no linux-image-amd64, and there is no kernel in $cache_root: run apt-get update"
    else
        cache=$cache_root/${package}_${version//[^A-Za-z0-9.+~-]/_}_$scripts
    fi

    # One builder at a time; who waited for it finds the work done.
    exec {build_lock}>"$cache_root/lock"
    if [[ ! -d $cache ]]; then
        flock "$build_lock"
        [[ -d $cache ]] || cache_build "$package" "$version"
    else
        flock -s "$build_lock"
    fi
    exec {use_lock}<"$cache"
    flock -s "$use_lock"
    exec {build_lock}>&-
}

# cache_build PACKAGE VERSION: fetches, unpacks, makes "$cache". The caller holds the builder's lock.
cache_build() {
    local package=$1 version=$2 work release
    say "making the guest's kernel from $package $version; this is done once"
    work=$(mktemp -d "$cache_root/building.XXXXXX")
    # shellcheck disable=SC2064  # the directory of now
    trap "rm -rf '$work'" RETURN

    mkdir "$work/deb" "$work/new" "$work/new/root"
    chmod 755 "$work" "$work/deb"
    (cd "$work/deb" && apt-get download -qq "$package=$version" >"$work/log" 2>&1) ||
        die "apt-get download $package=$version failed: $(tail -n 3 "$work/log")"
    dpkg -x "$work"/deb/*.deb "$work/new/root"
    release=$(basename "$work"/new/root/boot/vmlinuz-*)
    release=${release#vmlinuz-}
    echo "$release" >"$work/new/release"

    kernel_uncompress "$work/new/root/boot/vmlinuz-$release" "$work/new/vmlinux"
    # A merged /usr is where kmod looks for nothing: packages carry lib/modules, or usr/lib/modules since Debian 13.
    if [[ ! -d $work/new/root/lib && -d $work/new/root/usr/lib ]]; then
        ln -s usr/lib "$work/new/root/lib"
    fi
    depmod -b "$work/new/root" "$release"
    initramfs_make "$work/new/root" "$release" "$work/initramfs" "$work/new/initramfs"
    rm -rf "$work"/new/root/{boot,usr/share}

    mv -T "$work/new" "$cache"
    cache_prune
}

# Removes caches of other versions that no guest is using, and what a killed builder left.
# It runs under the builder's lock, so no other builder's directory is in sight.
cache_prune() {
    local old
    for old in "$cache_root"/linux-image-* "$cache_root"/building.*; do
        [[ -d $old && $old != "$cache" && $old != "${work-}" ]] || continue
        # shellcheck disable=SC2094  # the lock is on the directory itself
        (flock -n -x 9 && rm -rf "$old") 9<"$old" || true
    done
}

# kernel_uncompress VMLINUZ VMLINUX. The boot protocol's header (Documentation/arch/x86/boot.rst) says where the
# payload is: after setup_sects + 1 sectors, payload_offset bytes in. Its last four bytes are the size it unpacks to.
kernel_uncompress() {
    local image=$1 out=$2 sectors offset length magic
    field() { od -An -tu"$2" -j "$1" -N "$2" "$image" | tr -d ' '; }
    sectors=$(field $((0x1f1)) 1)
    offset=$(((sectors + 1) * 512 + $(field $((0x248)) 4)))
    length=$(($(field $((0x24c)) 4) - 4))
    magic=$(od -An -tx1 -j "$offset" -N 4 "$image" | tr -d ' ')
    payload() { tail -c +$((offset + 1)) "$image" | head -c "$length" || [[ $? == 141 ]]; }
    case $magic in
    fd377a58) payload | xz -dc >"$out" ;;
    28b52ffd) payload | zstd -dcq >"$out" ;;
    1f8b*) payload | gzip -dc >"$out" ;;
    *) die "the kernel's payload starts with $magic, which is none of xz, zstd, gzip" ;;
    esac
    [[ $(stat -c %s "$out") == $(od -An -tu4 -j $((offset + length)) -N 4 "$image" | tr -d ' ') ]] ||
        die "the kernel did not unpack to the size it states"
}

# initramfs_make ROOT RELEASE WORK OUT: busybox, guest/init and modules, with the lists that init reads.
initramfs_make() {
    local root=$1 release=$2 work=$3 out=$4 list module path name
    mkdir -p "$work"/{bin,modules,proc,sys,dev,lower,upper,new}
    cp "$(command -v busybox)" "$work/bin/busybox"
    cp "$here/guest/init" "$work/init"
    cp "$here/guest/session" "$work/session"
    cp "$here/guest/probe" "$work/probe"
    chmod 755 "$work"/{init,session,probe}
    for list in boot rxe; do
        local -n names=${list}_modules
        for module in "${names[@]}"; do
            # Lines are "insmod PATH" or "builtin NAME"; a dependency that a former list holds is loaded already.
            modprobe -d "$root" -S "$release" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p' | while read -r path; do
                name=$(basename "$path")
                name=${name%%.ko*}.ko
                [[ -e $work/modules/$name ]] && continue
                case $path in
                *.xz) xz -dc "$path" >"$work/modules/$name" ;;
                *.zst) zstd -dcq "$path" >"$work/modules/$name" ;;
                *) cp "$path" "$work/modules/$name" ;;
                esac
                echo "$name" >>"$work/modules/$list"
            done
        done
    done
    (cd "$work" && find . -mindepth 1 | cpio --quiet -o -H newc -R 0:0) >"$out"
}
