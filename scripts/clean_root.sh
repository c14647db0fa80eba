#!/bin/sh
# Runs COMMAND in a new Debian SUITE that has nothing but make, on a clone of this checkout as it is committed:
#   scripts/clean_root.sh trixie 'make demo'
#   --mirror URL     Debian's archive; default: the one that this machine's own apt uses
#   --cache DIR      keep downloaded packages there for the next time
#   --share DIR      a directory that is there under its own path, read-only
#   --no-checkout    no clone: the command begins in root's home
#   --limit SECONDS  wall-clock limit, default 7200
#   --guest KERNEL   COMMAND runs in a machine of its own: this User-Mode Linux kernel, booted over the new root, with
#                    one processor and no network
#   --memory MB      of that machine, default 4096
#   --before COMMAND runs first, in the new root itself: what needs a network
# The exit code is the command's. Packages come from where this machine's apt and pip get theirs; directories that pip's
# configuration names are there read-only. The new root has mount and PID namespaces of its own, so this machine's
# mounts and processes are out of reach, and all that was started ends with the script. Network and kernel are shared,
# but with a guest: its kernel is KERNEL, which must run with the new root's C library (build it on no newer Debian).
set -eu

usage() {
    echo "$1" >&2
    echo "usage: scripts/clean_root.sh [--mirror URL] [--cache DIR] [--share DIR] [--no-checkout] [--limit SECONDS]" \
        "[--guest KERNEL [--memory MB] [--before COMMAND]] SUITE COMMAND" >&2
    exit 2
}

# name the sources of SUITE ($1) as this machine's apt names those of its own release
sources_like_ours() {
    own=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    # shellcheck disable=SC2016 # apt fills these in
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed -n "s/^\(deb [^ ]* \)$own\([^ ]* main\)\$/\1$1\2/p"
}

# what pip's configuration names on this machine's disk: certificates, directories of packages, indexes
pip_paths() {
    python3 -m pip config list 2>/dev/null | grep -oE "(file://)?/[^'\" ]+" |
        sed 's|^file://\(.*\)/[^/]\{1,\}/*$|\1|' | sort -u || true # an index's pages refer to files beside it
}

mount_read_only() {
    mkdir -p "$2"
    mount --bind "$1" "$2"
    mount -o remount,bind,ro "$2"
}

make_devices() {
    mount -t tmpfs -o mode=755,nosuid tmpfs "$1/dev"
    for device in null zero full random urandom tty net/tun; do
        [ -e "/dev/$device" ] || continue
        mkdir -p "$(dirname "$1/dev/$device")"
        : >"$1/dev/$device"
        mount --bind "/dev/$device" "$1/dev/$device"
    done
    mkdir "$1/dev/pts" "$1/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$1/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
    ln -s pts/ptmx "$1/dev/ptmx"
    ln -s /proc/self/fd "$1/dev/fd"
}

HOME_INSIDE=/root # of root, in any Debian

use_our_packages() { # apt's and pip's settings; then what they need from this machine's disk
    printf '%s\n' "$SOURCES" >"$1/etc/apt/sources.list"
    apt-config dump Acquire >"$1/etc/apt/apt.conf.d/90clean-root"
    if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$1/etc/pip.conf"; fi
    for settings in .config/pip/pip.conf .pip/pip.conf; do
        if [ -f "$HOME/$settings" ]; then install -D -m 644 "$HOME/$settings" "$1$HOME_INSIDE/$settings"; fi
    done
    pip_paths | while IFS= read -r path; do
        if [ -d "$path" ]; then
            mount_read_only "$path" "$1$path"
        elif [ -f "$path" ]; then
            install -D -m 644 "$path" "$1$path"
        fi
    done
    cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
    if [ -n "$CACHE" ]; then
        mkdir -p "$1$HOME_INSIDE/.cache/pip" "$1/var/cache/apt/archives"
        mount --bind "$CACHE/pip" "$1$HOME_INSIDE/.cache/pip"
        mount --bind "$CACHE/debs" "$1/var/cache/apt/archives"
    fi
}

# what is needed to boot $GUEST: itself, its first process, and what that is to do in directory $3
lay_out_guest() {
    mkdir "$1/.guest"
    install -m 755 "$GUEST" "$1/.guest/linux"
    install -m 755 scripts/guest_init.sh "$1/.guest/init"
    printf '%s\n' "$2" >"$1/.guest/command"
    printf '%s\n' "$3" >"$1/.guest/begins"
}

# in the new root: what the guest's command writes comes by descriptor 3, what its kernel says goes into a file
# shellcheck disable=SC2016 # for the shell in the new root
BOOT='
set -eu
sh -c "$BEFORE"
TMPDIR=/dev/shm /.guest/linux root=/dev/root rootfstype=hostfs rootflags=/ rw mem="$MEMORY"M panic=-1 quiet seccomp=on \
    con=null con0=null,fd:1 con1=null,fd:3 uml_dir=/dev/shm/ hostname=guest init=/.guest/init \
    3>&1 >/.guest/kernel.log 2>&1 || true
if [ ! -s /.guest/code ]; then
    echo "the guest ended before its command did" >&2
    tail -n 20 /.guest/kernel.log >&2
    exit 4
fi
exit "$(cat /.guest/code)"'

# the first process of the new PID namespace, in a mount namespace from which nothing spreads
inside() {
    root=$1 suite=$2 command=$3
    mount --bind "$root" "$root"
    echo "making a root of Debian $suite" >&2
    [ -z "$CACHE" ] || mkdir -p "$CACHE/pip" "$CACHE/debs/partial"
    known=/usr/share/debootstrap/scripts like=''
    if [ -d "$known" ] && ! [ -e "$known/$suite" ]; then like=sid; fi # younger than this debootstrap
    debootstrap ${CACHE:+"--cache-dir=$CACHE/debs"} --variant=minbase --include=make,ca-certificates "$suite" \
        "$root" "$MIRROR" ${like:+"$like"} >"$root.log" 2>&1 || {
        tail -n 20 "$root.log" >&2
        exit 3
    }
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    make_devices "$root"
    use_our_packages "$root"
    [ -z "$SHARE" ] || mount_read_only "$SHARE" "$root$SHARE"
    begins=$HOME_INSIDE
    if [ -n "$CHECKOUT" ]; then
        begins=/testbed
        git clone --quiet --no-hardlinks . "$root$begins"
    fi
    if [ -n "$GUEST" ]; then
        lay_out_guest "$root" "$command" "$begins"
        command=$BOOT
    fi
    set -- MEMORY="$MEMORY" BEFORE="$BEFORE"
    while IFS= read -r pair; do
        set -- "$@" "$pair"
    done <<END
$(env | grep -E '^(PIP_[A-Z_]+|(http|https|no)_proxy|(HTTP|HTTPS|NO)_PROXY)=' || echo PIP_NO_INPUT=1)
END
    cd "$root"
    mkdir .before
    pivot_root . .before
    # shellcheck disable=SC2016 # for the shell in the new root, which goes on as its first process and reaps orphans
    exec chroot . /usr/bin/env -i "$@" HOME="$HOME_INSIDE" LANG=C.UTF-8 TERM=dumb \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/sh -c \
        'umount -l /.before && rmdir /.before && cd "$2" && sh -c "$1"; exit $?' sh "$command" "$begins"
}

if [ "${1-}" = --inside ]; then
    shift
    inside "$@"
fi

MIRROR='' CACHE='' SHARE='' CHECKOUT=yes LIMIT=7200 GUEST='' MEMORY='' BEFORE=''
while [ $# -gt 0 ]; do
    case $1 in
    --mirror | --cache | --share | --limit | --guest | --memory | --before)
        [ $# -gt 1 ] || usage "$1: a value is missing"
        case $1 in --mirror) MIRROR=$2 ;; --cache) CACHE=$2 ;; --share) SHARE=$2 ;; --limit) LIMIT=$2 ;; esac
        case $1 in --guest) GUEST=$2 ;; --memory) MEMORY=$2 ;; --before) BEFORE=$2 ;; esac
        shift 2
        ;;
    --no-checkout)
        CHECKOUT=''
        shift
        ;;
    -*) usage "$1: no such option" ;;
    *) break ;;
    esac
done
[ $# -eq 2 ] || usage "SUITE and COMMAND: got $# words, expected 2 (quote the command)"
case $1 in '' | *[!a-z]*) usage "SUITE: got '$1', expected a name like trixie" ;; esac
case $LIMIT in '' | *[!0-9]*) usage "--limit: got '$LIMIT', expected seconds" ;; esac
if [ -n "$GUEST" ]; then
    [ -f "$GUEST" ] && [ -x "$GUEST" ] || usage "--guest: got '$GUEST', expected a User-Mode Linux kernel's file"
    GUEST=$(cd "$(dirname "$GUEST")" && pwd -P)/$(basename "$GUEST")
    MEMORY=${MEMORY:-4096}
    case $MEMORY in *[!0-9]* | ?????*) usage "--memory: got '$MEMORY', expected MB, at most 9999" ;; esac
elif [ -n "$MEMORY$BEFORE" ]; then
    usage "--memory, --before: got no --guest with them"
fi
if [ -n "$SHARE" ]; then
    [ -d "$SHARE" ] || usage "--share: got '$SHARE', expected a directory"
    SHARE=$(cd "$SHARE" && pwd -P)
fi
[ "$(id -u)" -eq 0 ] || { echo "root is needed: for namespaces and mounts" >&2; exit 3; }
for program in debootstrap git unshare pivot_root setpriv; do
    command -v "$program" >/dev/null || { echo "no $program: apt-get install debootstrap git util-linux" >&2; exit 3; }
done
if [ -n "$MIRROR" ]; then
    SOURCES="deb $MIRROR $1 main"
else
    SOURCES=$(sources_like_ours "$1")
    MIRROR=$(printf '%s\n' "$SOURCES" | sed -n "s/^deb \([^ ]*\) $1 main\$/\1/p" | head -n 1)
    [ -n "$MIRROR" ] || { echo "this machine's apt names no archive of Debian: name one with --mirror" >&2; exit 3; }
fi
[ -z "$CACHE" ] || { mkdir -p "$CACHE" && CACHE=$(cd "$CACHE" && pwd); }
export MIRROR SOURCES CACHE SHARE CHECKOUT GUEST MEMORY BEFORE

script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
cd "$(dirname "$script")/.."
root=$(mktemp -d "${TMPDIR:-/var/tmp}/clean-root.XXXXXX")
chmod 755 "$root"
runner=''
# mounts were seen in the other namespace only: what is left here is plain files, or else is not touched
clean_up() {
    [ -z "$runner" ] || kill -KILL "$runner" 2>/dev/null || true
    wait
    if grep -qF " $root" /proc/self/mountinfo; then
        echo "mounts in $root: left as it is" >&2
        return
    fi
    tries=50 # processes that were just killed may still be writing
    until rm -rf --one-file-system -- "$root" "$root.log" 2>/dev/null || [ "$tries" -eq 0 ]; do
        tries=$((tries - 1))
        sleep 0.2
    done
    [ ! -e "$root" ] || echo "could not be removed: $root" >&2
}
trap clean_up EXIT
trap 'exit 130' INT HUP TERM

# each dies with the one before it, a killed script included; in the background so that signals are heard at once, and
# with the usual answer to Ctrl-C, which a shell takes from what it starts there
started=$(date +%s)
env --default-signal=INT,QUIT setpriv --pdeathsig KILL timeout --foreground --signal=KILL "$LIMIT" \
    setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child=KILL \
    "$script" --inside "$root" "$1" "$2" </dev/null &
runner=$!
status=0
wait "$runner" || status=$?
runner=''
if [ "$status" -eq 137 ] && [ $(($(date +%s) - started)) -ge "$LIMIT" ]; then
    echo "stopped: it took longer than --limit, $LIMIT s" >&2
    status=124
fi
exit "$status"
