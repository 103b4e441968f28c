#!/bin/bash
# Every header compiles alone.
set -eu
cd "$(dirname "$0")/.."
check() {
  printf '#include "%s"\n' "${1#src/}" | g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Isrc -x c++ - || { echo "$1 is not self-contained"; exit 1; }
}
export -f check
git ls-files 'src/*.h' | xargs -P "$(nproc)" -I{} bash -c 'check {}'
