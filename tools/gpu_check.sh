#!/bin/bash
# The whole device suite, on a machine with a GPU: gpu_check.sh [BUILD_DIR]. A folder that has the test programs is taken as it is; else
# they are built there (default: build/release). The last line counts what passed and what failed; the exit code is 0 if nothing failed.
set -u
cd "$(dirname "$0")/.."
build=${1:-build/release}
for program in test_backend_cuda test_engine; do
  [ -x "$build/$program" ] && continue
  echo "== building $program in $build"
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCALLA_BUILD_TESTS=ON -DCALLA_CUDA=ON -Wno-dev > /dev/null && cmake --build "$build" --target "$program" || exit 1
done

passed=0 failed=0
# check NAME COMMAND...: one line if it passes, its output if it does not.
check() {
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    passed=$((passed + 1))
    echo "ok      $name"
  else
    failed=$((failed + 1))
    printf '%s\n' "$output" | tail -n 40
    echo "FAILED  $name"
  fi
}
# The tests of a program whose names match, one line for each suite; if there are none, that is a failure.
suites() {
  local program=$1 names=$2 suite any=0
  for suite in $("$build/$program" --gtest_list_tests --gtest_filter="$names" | sed -n 's/^\([^ ]*\.\)\( .*\)*$/\1/p'); do
    any=1
    check "$program $suite" "$build/$program" --gtest_brief=1 --gtest_filter="$suite$names"
  done
  [ $any = 1 ] || check "$program $names: no such tests" false
}
suites test_backend_cuda '*'
suites test_engine '*Cuda*'

# Few and small: the sanitizer slows kernels down a hundredfold.
small='CudaDelta.Short*:CudaDelta.StepByStep:CudaDelta.GatedNorm:CudaAttention.Captured*'
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
for tool in memcheck racecheck initcheck; do
  check "compute-sanitizer $tool" "$sanitizer" --tool $tool --error-exitcode 1 "$build/test_backend_cuda" --gtest_brief=1 --gtest_filter="$small"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
