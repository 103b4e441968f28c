#!/bin/sh
# run_fuzzers.sh BUILD_DIR SECONDS: each fuzzer for some seconds, from its seeds in tests/fuzz/seeds/<name>/.
set -eu
cd "$(dirname "$0")/.."
build=$1
seconds=$2
ran=0
for program in "$build"/*_fuzz; do
  name=$(basename "$program" _fuzz)
  corpus=$build/corpus/$name
  mkdir -p "$corpus"
  printf '\n== fuzzing %s for %s s\n' "$name" "$seconds"
  seeds=tests/fuzz/seeds/$name
  [ -d "$seeds" ] || seeds=
  # shellcheck disable=SC2086
  "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0 \
    -artifact_prefix="$build/crash-$name-" "$corpus" $seeds
  ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "no fuzzers in $build" >&2; exit 1; }
echo "$ran fuzzers ran without a finding"
