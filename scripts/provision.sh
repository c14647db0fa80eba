#!/bin/sh
# Installs the Debian packages that the testbed needs and that are not there yet. Used by make and by the Vagrantfile.
# Run as root. Doing it twice does nothing the second time.
set -eu

# python3-venv: the virtual environment; mininet: its mnexec program (the Python package comes from the lock file);
# iproute2, iputils-ping, iperf3: links made and measured; procps, util-linux: containers; git: the manifest's commit
# user-mode-linux: a guest with netem; the rest: building the kernel of the virtual clock (testbed kernel build)
PACKAGES="python3 python3-venv git make iproute2 iputils-ping iperf3 mininet procps util-linux
    user-mode-linux linux-source-6.12 build-essential flex bison bc xz-utils"

missing=""
for package in $PACKAGES; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "missing packages:$missing; run as root: apt-get install --no-install-recommends$missing" >&2
    exit 3
fi
echo "installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
