# shellcheck shell=bash
# Sourced by ./quickstart and ./test: stages, packages, and builds of presets. Its functions expect the repository's
# root as the current folder.

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'
else
  bold='' red='' plain=''
fi

say() { printf '%s\n' "$*"; }
die() {
  printf '%s%s: %s%s\n' "$red" "$(basename "$0")" "$*" "$plain" >&2
  exit 1
}

duration() {
  if [ "$1" -lt 60 ]; then printf '%ds' "$1"; else printf '%dm %02ds' $(($1 / 60)) $(($1 % 60)); fi
}

# run_stage NAME COMMAND...: runs the command under a title and prints its time. A failure ends the script and prints
# how to repeat the stage; then calls on_failure if the script has defined it.
run_stage() {
  local name=$1 start=$SECONDS status=0
  shift
  say "${bold}== $name${plain}"
  # In a subshell, where `set -e` works; a function called as a condition would ignore it.
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
  if [ "$status" -ne 0 ]; then
    printf '%s== %s failed after %s (exit code %s)%s\n' "$red" "$name" "$(duration $((SECONDS - start)))" "$status" "$plain"
    say "   run it again with: $(again "$name")"
    if declare -F on_failure >/dev/null; then on_failure; fi
    exit 1
  fi
  say "${bold}== $name done in $(duration $((SECONDS - start)))${plain}"
}

# packages_of KIND...: the packages of tools/packages for these kinds.
packages_of() {
  local kind package wanted
  while read -r kind package; do
    for wanted in "$@"; do
      if [ "$kind" = "$wanted" ]; then say "$package"; fi
    done
  done <tools/packages
}

# Installs missing packages; does nothing if all are installed.
install_packages() {
  local names missing=() package as_root=()
  mapfile -t names < <(packages_of "$@")
  if ! command -v dpkg-query >/dev/null; then
    say "This is not Debian or Ubuntu. Where the build stops for something missing, look for the like of:"
    say "  ${names[*]}"
    return 0
  fi
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' 2>/dev/null | sed -n 's/^installed \([^:]*\).*/\1/p')
  for package in "${names[@]}"; do
    if ! grep -qxF -- "$package" <<<"$installed"; then missing+=("$package"); fi
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "all ${#names[@]} packages are there"
    return 0
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      die "packages are missing and neither root nor sudo is at hand; as root, run: apt-get install ${missing[*]}"
    fi
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  mkdir -p build/logs
  local log=build/logs/packages.log
  if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "apt-get could not install ${missing[*]}; the whole log is $log"
  fi
}

# Parallel compilers: one per core, limited by memory (1.5 GB each).
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo 2>/dev/null || true)
  if [ -n "$memory" ] && [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  if [ "$cores" -lt 1 ]; then cores=1; fi
  say "$cores"
}

# build_preset PRESET [TARGET...]: configures, lists features that are off because of a missing library, and builds. The
# caller may set configure_options, and show_steps for a line per step in a pipe too.
configure_options=()
show_steps=
build_preset() {
  local preset=$1 log=build/logs/configure-$1.log options=() arguments=()
  shift
  mkdir -p build/logs
  if [ -z "${CUDACXX:-}" ] && [ -n "$(cuda_compiler)" ]; then
    CUDACXX=$(cuda_compiler)
    export CUDACXX
  fi
  if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache); fi
  # Without a GPU the backend only has to compile: slow code for it takes half the time.
  if has_gpu; then options+=(-DESSH_CUDA_QUICK=OFF); else options+=(-DESSH_CUDA_QUICK=ON); fi
  if ! cmake --preset "$preset" "${options[@]}" "${configure_options[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
  sed -n 's/^-- essh: \(.*not found, off:.*\)/  \1/p' "$log"
  if [ $# -gt 0 ]; then arguments+=(--target "$@"); fi
  # On a terminal ninja redraws one line; in a pipe only warnings and errors are useful.
  if ! [ -t 1 ] && [ -z "$show_steps" ]; then arguments+=(-- --quiet); fi
  cmake --build --preset "$preset" --parallel "$(build_jobs)" "${arguments[@]}"
}

cuda_compiler() {
  command -v nvcc || if [ -x /usr/local/cuda/bin/nvcc ]; then say /usr/local/cuda/bin/nvcc; fi
}
has_gpu() { nvidia-smi -L 2>/dev/null | grep -q GPU; }

# The preset of ./essh: with the CUDA backend if there is a GPU, and in CI, where the backend must compile.
main_preset() {
  if [ -n "$(cuda_compiler)" ] && { [ "${CI:-}" = true ] || has_gpu; }; then say cuda; else say release; fi
}

link_binary() { ln -sfn "build/$1/apps/essh/essh" essh; }
