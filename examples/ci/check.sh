#!/bin/sh
# Checks the baselines in results/baselines/, with plans made anew from the files that they were saved from, and leaves in OUT what CI systems show. Options go to `testbed baseline check`,
# as does the exit code: 1 where a baseline is outside its tolerances, 5 where one on the real clock cannot be told from
# a slower machine.
set -eu
VENV=${VENV:-.venv}
OUT=${OUT:-testbed-check}
HISTORY=${HISTORY:-testbed-history}

mkdir -p "$OUT"
code=0
"$VENV/bin/testbed" baseline check --files --quiet \
    --junit "$OUT/junit.xml" --markdown "$OUT/summary.md" --history "$HISTORY" \
    --write "badge=$OUT/baselines.svg" --write "bencher=$OUT/bencher.json" \
    --write "github-benchmark=$OUT/github-benchmark.json" "$@" || code=$?
if [ "$code" -le 1 ] || [ "$code" -eq 5 ]; then
    "$VENV/bin/testbed" baseline history "$HISTORY" --picture "$OUT/times.svg"
fi
exit "$code"
