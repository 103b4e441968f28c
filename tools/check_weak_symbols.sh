#!/bin/sh
# check_weak_symbols.sh BUILD_DIR: objects built for one instruction set export one symbol and nothing weak. A weak symbol is an inline
# function that every file may bring; the linker keeps one copy, and if it keeps this one, processors without the instructions crash.
set -eu
found=0
for object in $(find "$1" -name '*_avx2.cc.o' -o -name '*_avx512.cc.o' -o -name '*_amx.cc.o' -o -name '*_neon.cc.o' -o -name '*_neon_i8mm.cc.o'); do
  found=$((found + 1))
  exported=$(nm -C --defined-only --extern-only "$object")
  if echo "$exported" | grep -E ' [WVuwv] '; then echo "$object exports weak symbols" >&2; exit 1; fi
  if [ "$(echo "$exported" | wc -l)" -ne 1 ]; then echo "$object exports more than its table:" >&2; echo "$exported" >&2; exit 1; fi
done
[ "$found" -gt 0 ] || { echo "no object of one instruction set in $1" >&2; exit 1; }
echo "$found object(s) without weak symbols"
