# shellcheck shell=bash disable=SC2034 # the names below are used by the other files
# common.sh - sourced by ./tandem for every command: output, Debian packages, builds, results.
# All files in tools/ run in the root of the checkout.

# Debian packages by purpose. Each command installs only the packages that it needs.
PACKAGES_BUILD=(gcc libc6-dev cmake ninja-build pkg-config libgrpc-dev libprotobuf-c-dev
    protobuf-c-compiler libsystemd-dev libmicrohttpd-dev libgnutls28-dev libjansson-dev libpcre2-dev
    libhwloc-dev libopenblas-serial-dev libssl-dev libsqlite3-dev libxxhash-dev)
PACKAGES_RUN=(python3 python3-jinja2 curl ca-certificates)
PACKAGES_TEST=(libcmocka-dev libsimde-dev systemd procps openssl iproute2 chromium)
PACKAGES_FUZZ=(clang libclang-rt-14-dev)
PACKAGES_CROSS=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
PACKAGES_LINT=(clang-format clang-tidy cppcheck)

LOGS=build/log
BIN=${TANDEM_BIN:-build/release} # TANDEM_BIN: use the programs in this folder and build nothing
SERVICES=(proposer-svc verifier-svc gateway)

# ---- output ----

[ -t 1 ] && TERMINAL=1 || TERMINAL=
BOLD='' PLAIN=''
if [ -n "$TERMINAL" ] && [ -z "${NO_COLOR:-}" ]; then BOLD=$'\e[1m' PLAIN=$'\e[0m'; fi

step() { printf '%s== %s%s\n' "$BOLD" "$*" "$PLAIN"; }
warn() { printf 'tandem: %s\n' "$*" >&2; }
die() {
    warn "$@"
    exit 1
}

# ---- packages ----

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

as_root() {
    if [ "$EUID" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "run this as root: apt-get install --no-install-recommends ${missing[*]}"
    fi
}

# need_packages NAME...: installs the packages that are missing.
need_packages() {
    command -v dpkg-query >/dev/null || die "dpkg-query is missing; this command needs Debian 12"
    local missing=() name
    for name in "$@"; do installed "$name" || missing+=("$name"); done
    [ ${#missing[@]} = 0 ] && return
    step "installing Debian packages: ${missing[*]}"
    [ "$EUID" = 0 ] || echo "this step needs root:"
    as_root apt-get -qq update || warn "apt-get update failed; using the existing package lists"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" ||
        die "could not install ${missing[*]}"
}

# Prints the packages of Node.js and npm that must be installed. Only tests and benchmarks use them, and any
# version that is already installed is sufficient.
packages_node() {
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
}

# ---- builds ----

# build PRESET [CMAKE_OPTION...]
build() {
    local preset=$1 log=$LOGS/build-$1.log
    shift
    mkdir -p "$LOGS"
    step "building $preset"
    if command -v ccache >/dev/null; then export CMAKE_C_COMPILER_LAUNCHER=ccache; fi
    cmake --preset "$preset" -DTANDEM_ISA_FROM= "$@" >"$log" 2>&1 || {
        cat "$log"
        die "configuring $preset failed (the output above is in $log)"
    }
    NINJA_STATUS='[%f/%t] ' ninja -C "build/$preset" -j "$(nproc)" | progress ||
        die "building $preset failed"
}

# Filters the output of ninja. On a terminal, progress lines replace each other. Otherwise every twentieth
# progress line is printed. All other lines (warnings, errors) are printed unchanged.
progress() {
    if [ -n "$TERMINAL" ]; then
        awk '/^\[[0-9]+\/[0-9]+\]/ { printf "\r\033[K%.79s", $0; fflush(); open = 1; next }
             /^ninja: Entering/ { next }
             { if (open) print ""; open = 0; print }
             END { if (open) print "" }'
    else
        awk '/^\[[0-9]+\/[0-9]+\]/ { split($1, n, /[][\/]/); if (n[2] % 20 == 0 || n[2] == n[3]) { print; fflush() } next }
             /^ninja: Entering/ { next }
             { print; fflush() }'
    fi
}

# ---- results of test and lint ----

N_PASSED=0 N_FAILED=0
SKIPS=() # one line for each skipped case: where, and why

add_results() { # PASSED FAILED
    N_PASSED=$((N_PASSED + $1)) N_FAILED=$((N_FAILED + $2))
}

# check NAME COMMAND...: runs one check and counts its result. A failure does not end the script.
check() {
    local name=$1
    shift
    step "$name"
    if "$@"; then add_results 1 0; else
        echo "$name: failed"
        add_results 0 1
    fi
}

# Prints the sums, and each skipped case with its reason. TANDEM_NO_SKIP=1: skipped cases are failures. The status
# is 0 if nothing failed.
show_results() {
    local kind=skipped n_skipped=${#SKIPS[@]}
    if [ "${TANDEM_NO_SKIP:-}" = 1 ]; then
        add_results 0 "$n_skipped"
        kind='skipped, a failure with TANDEM_NO_SKIP=1' n_skipped=0
    fi
    echo
    echo "$N_PASSED passed, $N_FAILED failed, $n_skipped skipped"
    [ ${#SKIPS[@]} = 0 ] || printf '%s\n' "${SKIPS[@]/#/$kind: }"
    [ "$N_FAILED" = 0 ]
}
