#!/bin/sh
# install_deps.sh run|test|web|neon…: installs the Debian packages that building (run), testing (test), building the page (web) and testing
# the kernels for AArch64 (neon) need, those that are missing only.
set -eu

run='g++ cmake ninja-build make pkg-config git libfmt-dev libexpected-dev nlohmann-json3-dev libsimdjson-dev libutf8proc-dev
     libedit-dev libcli11-dev libsqlite3-dev libboost1.81-dev'
test='libgtest-dev librapidcheck-dev libbenchmark-dev ccache mold clang-19 libclang-rt-19-dev clang-format clang-tidy-19
      python3 python3-jinja2 python3-numpy valgrind chromium'
neon='g++-aarch64-linux-gnu qemu-user googletest'

wanted=''
for group in "$@"; do
  case $group in
    run) wanted="$wanted $run" ;;
    test) wanted="$wanted $test" ;;
    web)  # Any Node.js from 18 on will do.
          command -v node > /dev/null && command -v npm > /dev/null || wanted="$wanted nodejs npm" ;;
    neon) wanted="$wanted $neon" ;;
    *) echo "install_deps.sh: unknown group $group" >&2; exit 2 ;;
  esac
done

missing=''
for package in $wanted; do
  dpkg-query -W -f='${Status}' "$package" 2> /dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=''
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || { echo "These packages are missing and need root to install:$missing" >&2; exit 1; }
  sudo=sudo
fi
printf '\n== installing packages:%s\n' "$missing"
$sudo apt-get update -q > /dev/null
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing > build/apt.log 2>&1 || {
  tail -20 build/apt.log >&2
  echo "install_deps.sh: apt-get install failed; the whole output is in build/apt.log" >&2
  exit 1
}
