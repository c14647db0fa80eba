#!/bin/sh
# Installs the testbed on Debian 12 or 13, as root, in a virtual environment: what it needs of Debian, then TESTBED, which
# is what pip installs: a directory with the testbed or a wheel, with [train] behind it; or testbed[train] @ git+https://...
set -eu
: "${TESTBED:?what pip installs: ./testbed[train], a wheel with [train] behind it, or testbed[train] @ git+https://...}"
VENV=${VENV:-.venv}

# labs; then guests and the kernel of the virtual clock
LABS="python3 python3-venv git iproute2 iputils-ping iperf3 mininet procps util-linux"
GUESTS="build-essential flex bison bc xz-utils"

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # lists of words
apt-get install -y -qq --no-install-recommends $LABS $GUESTS
python3 -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet "$TESTBED" pytest
"$VENV/bin/testbed" doctor || echo "no labs on the real clock here: what needs one is skipped" >&2
