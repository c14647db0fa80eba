#!/bin/sh
# Installs the Debian packages that the testbed needs and that are not there yet. Used by make and by the Vagrantfile.
# Installing takes root; where all that is needed is there, any user may call it. Doing it twice does nothing the second
# time.
set -eu

# python3-venv: the virtual environment; mininet: its mnexec program (the Python package comes from the lock file);
# iproute2, iputils-ping, iperf3: links made and measured; procps, util-linux: containers; git: the manifest's commit
PACKAGES="python3 python3-venv git make iproute2 iputils-ping iperf3 mininet procps util-linux"
# user-mode-linux: guests that have netem; the rest: building the kernel of the virtual clock, whose source is
# downloaded by testbed kernel build, linux-source-6.12 being for machines that cannot. Left out, with a word, where the
# distribution does not have them: everything else works without
GUEST_PACKAGES="user-mode-linux linux-source-6.12 build-essential flex bison bc xz-utils"

lacking() {
    for package in "$@"; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$status" = installed ] || printf ' %s' "$package"
    done
}

# shellcheck disable=SC2086 # lists of words
missing="$(lacking $PACKAGES)" guests="$(lacking $GUEST_PACKAGES)"
[ -n "$missing$guests" ] || exit 0

# other systems' packages have other names: what counts is that a user has the programs
programs() {
    for program in python3 git make ip ping mnexec unshare nsenter ps; do
        command -v "$program" >/dev/null || printf ' %s' "$program"
    done
    python3 -c 'import ensurepip, venv' 2>/dev/null || printf ' python3-venv'
}

if [ "$(id -u)" -ne 0 ]; then
    PATH=$PATH:/usr/sbin:/sbin
    lacking_programs=$(programs)
    if [ -z "$lacking_programs" ]; then
        echo "not installed, and not needed for training:$missing$guests" >&2
        exit 0
    fi
    echo "missing:$lacking_programs" >&2
    echo "installing takes root: sudo apt-get install --no-install-recommends$missing$guests" >&2
    exit 3
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
for package in $guests; do
    if apt-cache show "$package" >/dev/null 2>&1; then
        missing="$missing $package"
    else
        echo "this distribution has no $package: no guests (--vm) or no virtual clock here" >&2
    fi
done
[ -n "$missing" ] || exit 0
echo "installing$missing" >&2
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
