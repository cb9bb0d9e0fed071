# common.sh - what every command uses: talking, Debian packages, building.

# Debian packages by name. A command installs what it needs and no more.
PACKAGES_BUILD=(gcc libc6-dev cmake ninja-build pkg-config libgrpc-dev libprotobuf-c-dev
    protobuf-c-compiler libsystemd-dev libmicrohttpd-dev libjansson-dev libpcre2-dev
    libhwloc-dev libopenblas-serial-dev libssl-dev libsqlite3-dev libxxhash-dev)
PACKAGES_RUN=(python3 python3-jinja2 curl ca-certificates)
PACKAGES_TEST=(libcmocka-dev systemd procps openssl chromium)
PACKAGES_FUZZ=(clang libclang-rt-14-dev)
PACKAGES_CROSS=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
PACKAGES_LINT=(clang-format clang-tidy cppcheck)

LOGS=build/log
CLIENTS=build/clients # where the npm packages of tests/clients go
SERVICES=(proposer-svc verifier-svc gateway)
BIN=${TANDEM_BIN:-build/release} # given: programs that are built already

# ---- talking ----

[ -t 1 ] && TERMINAL=1 || TERMINAL=
BOLD='' PLAIN=''
if [ -n "$TERMINAL" ] && [ -z "${NO_COLOR:-}" ]; then BOLD=$'\e[1m' PLAIN=$'\e[0m'; fi

step() { printf '%s== %s%s\n' "$BOLD" "$*" "$PLAIN"; }
die() {
    printf 'tandem: %s\n' "$*" >&2
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

# need_packages NAME...: installs those that are missing.
need_packages() {
    command -v dpkg-query >/dev/null || die "this needs Debian 12; there is no dpkg-query here"
    local missing=() name
    for name in "$@"; do installed "$name" || missing+=("$name"); done
    [ ${#missing[@]} = 0 ] && return
    step "installing Debian packages: ${missing[*]}"
    [ "$EUID" = 0 ] || echo "this needs root:"
    as_root apt-get -qq update || echo "tandem: apt-get update failed, trying with the lists as they are" >&2
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" ||
        die "could not install ${missing[*]}"
}

# Node.js serves the tests only; any that is there will do.
packages_node() {
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
}

# ---- building ----

# build PRESET [CMAKE_OPTION...]
build() {
    local preset=$1 log=$LOGS/build-$1.log
    shift
    mkdir -p "$LOGS"
    step "building $preset"
    if command -v ccache >/dev/null; then export CMAKE_C_COMPILER_LAUNCHER=ccache; fi
    cmake --preset "$preset" "$@" >"$log" 2>&1 || {
        cat "$log"
        die "configuring $preset failed (the text above is in $log)"
    }
    NINJA_STATUS='[%f/%t] ' ninja -C "build/$preset" -j "$(nproc)" | progress ||
        die "building $preset failed"
}

# Ninja's lines: one in place on a terminal; else every twentieth, and whatever is no progress.
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

# ---- counting ----

N_PASSED=0 N_FAILED=0

count() { # PASSED FAILED
    N_PASSED=$((N_PASSED + $1)) N_FAILED=$((N_FAILED + $2))
}

# check NAME COMMAND...: says what failed and goes on.
check() {
    local name=$1
    shift
    step "$name"
    if "$@"; then count 1 0; else
        echo "$name: failed"
        count 0 1
    fi
}
