# The steps of scripts/bootstrap. Each looks first whether there is anything to do. Run from the
# repository root, with .deps/ present and locked.

packages=(
  ca-certificates ccache dict-devil g++ git libcli11-dev libgloo-dev libhwy-dev libsodium-dev
  libtbb-dev libtomlplusplus-dev liburing-dev libxxhash-dev libzstd-dev ninja-build
  nlohmann-json3-dev pkg-config python3 python3-pip zlib1g-dev
)
test_packages=(libbenchmark-dev libgtest-dev)
optional_packages=(librapidcheck-dev mold)
kMinimumRust=85 # the minor version of Rust 1.x that the crates of src/text need

say() { printf 'bootstrap: %s\n' "$*" >&2; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo --preserve-env=DEBIAN_FRONTEND "$@"; fi
}

# A linked git worktree uses the .deps of the main one: it is several gigabytes.
share_deps_between_worktrees() {
  [ -e .deps ] && return
  [ -f .git ] || return 0
  local main
  main=$(dirname "$(git rev-parse --path-format=absolute --git-common-dir)")
  [ -d "$main" ] && [ "$main" != "$PWD" ] || return 0
  mkdir -p "$main/.deps"
  ln -s "$main/.deps" .deps
}

missing_packages() {
  local name
  for name in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null)" = 'ii ' ] || echo "$name"
  done
}

lists_are_fresh=no
refresh_package_lists() {
  [ "$lists_are_fresh" = no ] || return 0
  as_root apt-get update -qq >&2 || say 'apt-get update failed: trying with the lists at hand'
  lists_are_fresh=yes
}

apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get install -y -qq --no-install-recommends "$@" >.deps/apt.log 2>&1 ||
    { tail -n 20 .deps/apt.log >&2; return 1; }
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian or Ubuntu: install by hand the equivalents of: ${packages[*]}"
    return
  fi
  local missing name wanted=("${packages[@]}")
  [ "$program_alone" = yes ] || wanted+=("${test_packages[@]}")
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  if [ ${#missing[@]} -gt 0 ]; then
    say "installing packages: ${missing[*]}"
    refresh_package_lists
    apt_install "${missing[@]}"
  fi
  [ "$program_alone" = no ] || return 0
  # Tried once only: a release without them builds as well.
  local stamp=.deps/optional-packages.stamp
  [ -e "$stamp" ] && [ "$(cat "$stamp")" = "${optional_packages[*]}" ] && return
  for name in $(missing_packages "${optional_packages[@]}"); do
    refresh_package_lists
    apt_install "$name" || say "$name is not packaged here: going on without it"
  done
  echo "${optional_packages[*]}" >"$stamp"
}

rust_is_new_enough() {
  local minor
  minor=$("$@" --version 2>/dev/null | sed -n 's/^[a-z]* 1\.\([0-9]*\)\..*/\1/p')
  [ -n "$minor" ] && [ "$minor" -ge "$kMinimumRust" ]
}

# .deps/bin/cargo is what the build calls: the installed cargo, or a versioned one of the distribution.
install_rust() {
  if [ -x .deps/bin/cargo ] && rust_is_new_enough .deps/bin/cargo; then return; fi
  local cargo name
  if ! { command -v cargo >/dev/null && rust_is_new_enough cargo; }; then
    refresh_package_lists
    for name in $(packaged_rust); do
      say "installing ${name%%:*} ${name##*:}"
      apt_install "${name%%:*}" "${name##*:}" && break
    done
  fi
  for cargo in cargo /usr/bin/cargo $(ls -v /usr/bin/cargo-1.* 2>/dev/null | tac); do
    if command -v "$cargo" >/dev/null && rust_is_new_enough "$cargo"; then
      write_cargo_wrapper "$(command -v "$cargo")"
      return
    fi
  done
  install_rustup
}

# Pairs rustc:cargo, newest first. Debian 12 has its browsers' Rust beside its own; Ubuntu packages
# several releases beside each other.
packaged_rust() {
  apt-cache search --names-only '^cargo-(web|1\.[0-9]+)$' | cut -d' ' -f1 | sort -rV |
    sed 's/^cargo-\(.*\)$/rustc-\1:cargo-\1/'
}

write_cargo_wrapper() {
  local rustc=${1/%cargo/rustc}
  case $1 in *cargo-1.*) rustc=${1/cargo-1./rustc-1.} ;; esac
  rm -f .deps/bin/cargo
  printf '#!/bin/sh\nRUSTC=%s exec %s "$@"\n' "$rustc" "$1" >.deps/bin/cargo
  chmod +x .deps/bin/cargo
}

install_rustup() {
  say 'no packaged Rust is new enough: installing one with rustup'
  apt_install rustup ||
    { say "install Rust 1.$kMinimumRust or later (cargo), then run this again"; exit 1; }
  rustup toolchain install stable --profile minimal
  write_cargo_wrapper "$(rustup which cargo)"
}

# What the stamp of wheels says: SALT REQUIREMENTS...
wheels_key() {
  local salt=$1
  shift
  { echo "$salt"; cat "$@"; } | sha256sum | cut -d' ' -f1
}

has_wheels() { [ -e ".deps/$1.stamp" ] && [ "$(cat ".deps/$1.stamp")" = "$2" ]; }

# install_wheels NAME SALT REQUIREMENTS...: unpacks pinned wheels into .deps/NAME, again whenever
# the requirements or the salt change. The platform is fixed, so that one set of hashes serves
# every distribution and every Python.
install_wheels() {
  local name=$1 salt=$2 key stamp platforms=(--platform manylinux2014_x86_64) minor file
  shift 2
  key=$(wheels_key "$salt" "$@")
  stamp=.deps/$name.stamp
  if has_wheels "$name" "$key"; then return; fi
  say "fetching $name"
  for minor in $(seq 28 -1 5); do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
  platforms+=(--platform manylinux2010_x86_64 --platform manylinux1_x86_64)
  local requirements=()
  for file in "$@"; do requirements+=(-r "$file"); done
  rm -rf "$stamp" ".deps/$name" .deps/tmp/*
  # TMPDIR: pip unpacks there and then moves, which is free within one file system.
  TMPDIR=$PWD/.deps/tmp PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-cache-dir \
    --no-deps --no-compile --require-hashes --only-binary :all: --target ".deps/$name" \
    --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
    "${platforms[@]}" "${requirements[@]}"
  after_install "$name"
  echo "$key" >"$stamp"
}

after_install() {
  [ "$1" = libtorch ] || return 0
  local cuda=.deps/libtorch/nvidia/cu13 lib
  [ -d "$cuda/lib" ] || return 0
  # CMake and nvcc expect a toolkit: lib64, and library names without a version.
  ln -sfn lib "$cuda/lib64"
  for lib in "$cuda"/lib/lib*.so.* .deps/libtorch/nvidia/nccl/lib/lib*.so.*; do
    [ -e "$lib" ] || continue # a program without CUDA has no NCCL
    [ -e "${lib%%.so.*}.so" ] || ln -s "$(basename "$lib")" "${lib%%.so.*}.so"
  done
}

link_tools() {
  local tool
  for tool in cmake/data/bin/cmake cmake/data/bin/ctest cmake/data/bin/cpack \
    clang_format/data/bin/clang-format; do
    ln -sfn "../tools/$tool" ".deps/bin/$(basename "$tool")"
  done
}

has_own_libtorch() {
  [ -n "${LONGSHORE_LIBTORCH:-}${Torch_DIR:-}" ] && return
  local prefix prefixes=${CMAKE_PREFIX_PATH:-}
  for prefix in ${prefixes//[:;]/ }; do
    [ -e "$prefix/share/cmake/Torch/TorchConfig.cmake" ] && return
  done
  return 1
}

has_own_cuda() { [ -x "${CUDAToolkit_ROOT:-/usr/local/cuda}/bin/nvcc" ]; }

# What a program without CUDA is linked with: torch's wheel, which is built for CUDA, and the two of
# CUDA's libraries that libtorch_cpu.so names. LibTorch with all of CUDA does as well.
install_libtorch_alone() {
  local all=(scripts/deps/libtorch.txt)
  if has_own_libtorch; then return; fi
  has_own_cuda || all+=(scripts/deps/cuda.txt)
  if has_wheels libtorch "$(wheels_key 1 "${all[@]}")"; then return; fi
  grep -E -A1 '^(torch|nvidia-cuda-runtime|nvidia-cuda-cupti)==' scripts/deps/libtorch.txt |
    grep -v '^--$' >.deps/libtorch-alone.txt
  install_wheels libtorch 1 .deps/libtorch-alone.txt
}

install_libtorch_and_cuda() {
  local files=()
  has_own_libtorch || files+=(scripts/deps/libtorch.txt)
  # The compiler wheels complete the toolkit that LibTorch's CUDA libraries begin.
  has_own_libtorch || has_own_cuda || files+=(scripts/deps/cuda.txt)
  [ ${#files[@]} -eq 0 ] || install_wheels libtorch 1 "${files[@]}"
}
