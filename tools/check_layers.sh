#!/bin/bash
# Fails on an #include from a lower library to a higher one. The order is the one of CMakeLists.txt.
set -eu
cd "$(dirname "$0")/.."

# folder: the folders it may include from, besides itself
declare -A may=(
  [base]=''
  [text]='base'
  [grammar]='base text'
  [formats]='base'
  [quant]='base'
  [ops]='base quant'
  [model]='base quant formats ops'
  [backend/reference]='base quant formats ops model'
  [backend/cpu]='base quant formats ops model'
  [backend/cuda]='base quant formats ops model'
  [convert]='base quant formats ops model text'
  [engine]='base quant formats ops model text grammar backend/reference backend/cpu backend/cuda'
  [store]='base text'
  [bench]='base quant formats ops model text backend/cpu engine'
  [eval]='base quant formats text engine'
  [server]='base formats model text engine store api'
  [app]='base quant formats ops model text backend/cpu engine convert bench eval api server store'
  [api]='base text grammar engine'
)

bad=0
while read -r file; do
  dir=$(dirname "${file#src/}")
  if [ -z "${may[$dir]+known}" ]; then
    echo "$file: $dir is not in the order of the libraries (tools/check_layers.sh)"; bad=1; continue
  fi
  while IFS=: read -r line include; do
    target=$(dirname "$include")
    [ "$target" = "$dir" ] && continue
    case " ${may[$dir]} " in
      *" $target "*) ;;
      *) echo "$file:$line: $dir must not include from $target"; bad=1 ;;
    esac
  done < <(grep -nE '^#include "' "$file" | sed -E 's/^([0-9]+):#include "([^"]+)".*/\1:\2/')
done < <(git ls-files --cached --others --exclude-standard 'src/*.h' 'src/*.cc' 'src/*.cu' 'src/*.cuh')
exit $bad
