# test.sh - ./tandem test.

npm_clients() {
    local stamp=$CLIENTS/.installed
    if [ -e "$stamp" ] && cmp -s tests/clients/package-lock.json "$CLIENTS/package-lock.json"; then return; fi
    rm -rf "$CLIENTS"
    mkdir -p "$CLIENTS"
    cp tests/clients/package.json tests/clients/package-lock.json "$CLIENTS/"
    (cd "$CLIENTS" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error) || return
    touch "$stamp"
}

# promtool checks /metrics; its package is unpacked, not installed (it would start a server).
unpack_promtool() {
    [ -x build/promtool ] && return
    step "fetching promtool"
    local tmp
    tmp=$(mktemp -d)
    if (cd "$tmp" && apt-get -qq download prometheus && dpkg-deb -x ./*.deb root) >/dev/null 2>&1; then
        cp "$tmp/root/usr/bin/promtool" build/
    else
        echo "skipped: promtool could not be fetched, /metrics is checked without it"
    fi
    rm -rf "$tmp"
}

# For tests/kernel/test_kernel_cross.py. A state of its own lets apt-get fetch for another CPU; this system's
# list of architectures stays as it is.
unpack_cmocka_arm64() {
    [ -d build/arm64 ] && return
    step "fetching cmocka for arm64"
    local tmp
    tmp=$(mktemp -d)
    mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial"
    touch "$tmp/status"
    local apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=
        -o Dir::State="$tmp" -o Dir::State::status="$tmp/status" -o Dir::Cache="$tmp/cache")
    if (cd "$tmp" && "${apt[@]}" update && "${apt[@]}" download libcmocka0 libcmocka-dev &&
        for deb in *.deb; do dpkg-deb -x "$deb" root; done) >"$LOGS/cmocka-arm64.log" 2>&1; then
        mkdir -p build
        mv "$tmp/root" build/arm64
    else
        echo "cmocka for arm64 could not be fetched (see $LOGS/cmocka-arm64.log)"
    fi
    rm -rf "$tmp"
}

# run_ctest PRESET LABEL_REGEX: runs what carries the label and counts the cases in its output.
run_ctest() {
    local preset=$1 labels=$2 log=$LOGS/test-$1.log
    step "testing $preset: ${labels//|/, }"
    ctest --test-dir "build/$preset" -L "^($labels)\$" -j "$(nproc)" --output-on-failure --no-tests=error || :
    cp "build/$preset/Testing/Temporary/LastTest.log" "$log"
    local passed failed
    read -r passed failed < <(/usr/bin/python3 tools/count.py "$log")
    echo "$preset: $passed passed, $failed failed (whole output in $log)"
    count "$passed" "$failed"
}

# A million executions of every fuzzer on top of its corpus; finds stay in build/fuzz/found.
run_fuzzers() {
    local fuzzer what
    for fuzzer in build/fuzz/tests/fuzz_*; do
        if [ ! -f "$fuzzer" ] || [ ! -x "$fuzzer" ]; then continue; fi
        what=${fuzzer##*/fuzz_}
        mkdir -p "build/fuzz/found/$what"
        step "fuzzing $what"
        if "$fuzzer" -runs=1000000 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
            -artifact_prefix="build/fuzz/found/$what-" "build/fuzz/found/$what" "tests/fuzz/corpus/$what" \
            >"$LOGS/fuzz-$what.log" 2>&1; then
            echo "fuzz_$what: 1000000 executions"
            count 1 0
        else
            tail -n 40 "$LOGS/fuzz-$what.log"
            count 0 1
        fi
    done
}

command_test() {
    local long=
    case ${1:-} in
    '') ;;
    --long) long=1 ;;
    *) die "test has one option, --long" ;;
    esac
    local extra=()
    mapfile -t extra < <(packages_node)
    [ -z "$long" ] || extra+=("${PACKAGES_FUZZ[@]}" "${PACKAGES_CROSS[@]}")
    need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_RUN[@]}" "${PACKAGES_TEST[@]}" "${extra[@]}"
    check "npm packages" npm_clients
    unpack_promtool
    if [ -n "$long" ]; then
        unpack_cmocka_arm64
        export TANDEM_TEST_LONG=1
    fi
    local options=(-DTANDEM_TEST_TIMEOUT_S=$((long ? 21600 : 600)))
    build dev "${options[@]}"
    run_ctest dev 'unit|kernel|golden|fuzz|lint|system|clients'
    build asan "${options[@]}"
    run_ctest asan 'unit|fuzz|system|clients'
    build tsan "${options[@]}"
    run_ctest tsan 'unit|system'
    if [ -n "$long" ]; then
        build fuzz
        run_fuzzers
    fi
    echo
    echo "$N_PASSED passed, $N_FAILED failed"
    [ "$N_FAILED" = 0 ]
}
