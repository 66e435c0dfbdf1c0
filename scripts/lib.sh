# Shared by demo, test and bench: the packages they need, and how a preset is built. Sourced, not run.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${JIFFY_JOBS:-$(nproc)}

# Debian and Ubuntu packages. `who` says what needs one: all scripts, only demo or test, or test --full.
#
#  package               who             what for
packages='
   g++                   all             the compiler
   cmake                 all             the build (3.25 or newer)
   ninja-build           all             the build
   libboost-context-dev  all             fiber switch (Boost.Context)
   libcli11-dev          all             command line of the program
   nlohmann-json3-dev    all             JSON results
   libgtest-dev          all             tests
   libbenchmark-dev      all             micro benchmarks
   libboost-fiber-dev    all             peer in the micro benchmarks
   gnuplot-nox           demo            plots
   gdb                   test            tests of the gdb script
   valgrind              test            tests under valgrind, and its knowledge of fiber stacks
   clang                 full            clang and thread-sanitizer builds
   libclang-rt-dev       full            sanitizer runtime of clang
'

say() { printf '%s\n' "$@" >&2; }
die() { say "$@"; exit 1; }

is_installed() {
  [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# need_packages no_install who...: prints what is missing and installs it. With no_install=1 it prints
# the whole list and ends the script. Otherwise it writes to stderr: stdout belongs to the results.
need_packages() {
  local no_install=$1; shift
  local wanted=" all $* " package who what missing=()
  [[ $no_install == 0 ]] || exec 2>&1  # Here the list is the result.
  if ! command -v dpkg-query >/dev/null; then
    say 'This is not a Debian system, so the packages are not checked. Their Debian names:'
    say "$packages"
    [[ $no_install == 0 ]] || exit 0
    return 0
  fi
  while read -r package who what; do
    [[ -n $package && $wanted == *" $who "* ]] || continue
    local state=installed
    is_installed "$package" || { state=MISSING; missing+=("$package"); }
    if [[ $no_install == 1 || $state == MISSING ]]; then
      printf '  %-21s %-10s %s\n' "$package" "$state" "$what" >&2
    fi
  done <<<"$packages"
  if ((${#missing[@]})); then
    local command=(apt-get install --yes --no-install-recommends "${missing[@]}")
    ((EUID == 0)) || command=(sudo "${command[@]}")
    say '' "To be installed: ${missing[*]}"
    say "by: ${command[*]}"
  elif [[ $no_install == 1 ]]; then
    say 'Nothing is missing.'
  fi
  [[ $no_install == 0 ]] || exit 0
  ((${#missing[@]})) || return 0
  install_packages "${command[@]}"
}

install_packages() {
  if [[ $1 == sudo ]] && ! command -v sudo >/dev/null; then
    die 'There is no sudo here: run the command above as root without it, then this script again.'
  fi
  "$@" >&2 && return 0
  local update=(apt-get update)
  [[ $1 != sudo ]] || update=(sudo "${update[@]}")
  say '' "The package lists may be missing or old; once more after: ${update[*]}"
  "${update[@]}" >&2 || die 'The package lists could not be read.'
  "$@" >&2 || die 'The packages could not be installed.'
}

# build_preset preset [cmake argument...]: configures and builds, everything on stderr.
build_preset() {
  local preset=$1; shift
  (cd "$root" && cmake --preset "$preset" "$@" && cmake --build --preset "$preset" --parallel "$jobs") >&2
}
