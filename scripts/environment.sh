# Sourced by the scripts beside it: makes .venv with Python 3.11 or later and installs tvmopt into it.
#
#   make_environment EXTRAS     "" or "[dev]"; sets $python
#
# PYTHON names another interpreter. Nothing is installed again while pyproject.toml has not changed. The package's sources
# are compiled to bytecode, as pip does it with a wheel: where PYTHONDONTWRITEBYTECODE is set, each process that compiles
# or verifies a model would do that again, half a second of each compile.

make_environment() {
  local extras=$1 interpreter=${PYTHON:-} candidate stamp
  if [ -z "$interpreter" ]; then
    for candidate in python3 python3.11 python3.12 python3.13 python; do
      if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        interpreter=$candidate
        break
      fi
    done
  fi
  if [ -z "$interpreter" ]; then
    echo "tvmopt needs Python 3.11 or later; none was found (PYTHON=/path/to/python names one)" >&2
    exit 5
  fi
  if ! command -v "${CC:-cc}" >/dev/null && ! command -v gcc >/dev/null && ! command -v clang >/dev/null; then
    echo "tvmopt needs a C compiler to link kernels: apt install gcc, dnf install gcc, apk add gcc musl-dev" >&2
    exit 5
  fi
  python=$PWD/.venv/bin/python
  if [ ! -x "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1; then
    echo "making .venv with $("$interpreter" --version)" >&2
    "$interpreter" -m venv --clear .venv
  fi
  stamp=.venv/.tvmopt-$(cksum pyproject.toml | cut -d' ' -f1)-$(printf %s "$extras" | tr -d '[],')
  if [ ! -e "$stamp" ]; then
    echo "installing tvmopt and what it needs into .venv" >&2
    "$python" -m pip install --quiet --disable-pip-version-check -e ".$extras"
    : >"$stamp"
  fi
  "$python" -m compileall -q frontend/tvmopt
}
