# shellcheck shell=bash
# Sourced by the other scripts: folders, number of jobs, and how a step is shown.
#   VENV       the Python environment (default: .venv in the tree)
#   CCACHE_DIR the compiler cache (default: ccache's default, which all clones share)
#   JOBS       parallel compiler processes (default: all processors)
#   ACCORD_CUDA  kernels for NVIDIA GPUs: ON, OFF or AUTO (default: ON if this machine has NVIDIA's driver, else OFF)
set -euo pipefail
unset CDPATH
script=$(realpath "$0")
caller_folder=$PWD
ROOT=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
cd "$ROOT"
# absolute PATH: makes a path absolute that is relative to the caller's folder.
absolute() { (cd "$caller_folder" && realpath -ms -- "$1"); }
VENV=$(absolute "${VENV:-$ROOT/.venv}")
export VENV
export JOBS=${JOBS:-$(nproc)}
# A package in the caller's path must not replace the one that is being built.
unset PYTHONPATH
# Python compiles each module once, when it is first imported. Otherwise each process would compile all of torch.
unset PYTHONDONTWRITEBYTECODE
# Cached objects are shared between trees, and between builds of wheels and of this tree.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1

# say TEXT...: prints a progress line that stands out from the output of the tools.
say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
# usage: prints the comment at the top of the calling script.
usage() { sed -n '2,/^# shellcheck/s/^# \{0,1\}//p' "$script" | sed '$d'; }
case ${1:-} in
  -h | --help)
    usage
    exit
    ;;
esac
# Programs that this script waits for may treat Ctrl-C as a failure of their own, after which the script would continue.
trap 'exit 130' INT
# fail TEXT...: prints the reason and ends the script.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# begin LOG COMMAND...: starts a command in the background. It ends with this script; its output is written to the file.
begin() {
  beside_log=$1
  mkdir -p "$(dirname "$beside_log")"
  set -m  # gives it a process group of its own, which can be ended as a whole
  "${@:2}" < /dev/null > "$beside_log" 2>&1 &
  set +m
  beside=$!
  trap 'kill -- "-$beside" 2> /dev/null || true' EXIT
}
# finish: waits for the command that was begun. If it failed, shows its output.
finish() {
  if kill -0 "$beside" 2> /dev/null; then say "waiting for what $beside_log tells of"; fi
  local rc=0
  wait "$beside" || rc=$?
  trap - EXIT
  [[ $rc == 0 ]] || cat "$beside_log" >&2
  return "$rc"
}
# begin_setup STEP...: installs what the build for these steps needs, then starts to install the rest, mostly PyTorch.
begin_setup() {
  [[ -w . ]] || fail "nothing can be written to $ROOT, where builds go"
  scripts/setup --build "$@" && begin build/setup.log scripts/setup "$@"
}

# lock FILE WHAT: holds FILE until this script ends. Waits if another script of this tree holds it, and says so.
lock() {
  command -v flock > /dev/null || return 0
  mkdir -p "$(dirname "$1")"
  exec {lock_descriptor}> "$1"
  flock --nonblock "$lock_descriptor" || {
    say "waiting for another $2 in this tree"
    flock "$lock_descriptor"
  }
}

# choose_cuda: sets ACCORD_CUDA to ON or OFF, also for the scripts that this one calls.
choose_cuda() {
  case ${ACCORD_CUDA:-AUTO} in
    ON | OFF) ;;
    AUTO)
      ACCORD_CUDA=OFF
      [[ ! -e /dev/nvidiactl && ! -e /proc/driver/nvidia/version ]] || ACCORD_CUDA=ON
      ;;
    *) fail "ACCORD_CUDA is ON, OFF or AUTO, not \"$ACCORD_CUDA\"" ;;
  esac
  export ACCORD_CUDA
}
choose_cuda
