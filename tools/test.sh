# shellcheck shell=bash
# test.sh - ./tandem test.
# shellcheck source=/dev/null
. tools/lint.sh

CLIENTS=build/clients # the npm packages of tests/clients are installed here

npm_clients() {
    local stamp=$CLIENTS/.installed
    if [ -e "$stamp" ] && cmp -s tests/clients/package-lock.json "$CLIENTS/package-lock.json"; then return; fi
    rm -rf "$CLIENTS"
    mkdir -p "$CLIENTS"
    cp tests/clients/package.json tests/clients/package-lock.json "$CLIENTS/"
    (cd "$CLIENTS" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error) || return
    touch "$stamp"
}

# promtool checks the format of /metrics. Its package is unpacked but not installed, because installing it would
# start a Prometheus server.
unpack_promtool() {
    [ -x build/promtool ] && return
    step "fetching promtool"
    local tmp
    tmp=$(mktemp -d)
    if (cd "$tmp" && apt-get -qq download prometheus && dpkg-deb -x ./*.deb root) >/dev/null 2>&1; then
        cp "$tmp/root/usr/bin/promtool" build/
    else
        echo "could not fetch promtool; the tests that need it are skipped"
    fi
    rm -rf "$tmp"
}

# test_kernel_cross.py needs cmocka for arm64. apt-get gets a state folder for this one download, so this
# system's list of architectures does not change.
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
        echo "could not fetch cmocka for arm64 (see $LOGS/cmocka-arm64.log)"
    fi
    rm -rf "$tmp"
}

# run_ctest PRESET LABEL_REGEX: runs the tests with these labels and counts the cases in their output. A failure that
# only the status of ctest tells is counted, too.
run_ctest() {
    local preset=$1 labels=$2 log=$LOGS/test-$1.log last=build/$1/Testing/Temporary/LastTest.log status=0
    step "testing $preset: ${labels//|/, }"
    rm -f "$last" "$log" # of an earlier run
    ctest --test-dir "build/$preset" -L "^($labels)\$" -j $((2 * $(nproc))) --output-on-failure --no-tests=error || status=$?
    if ! cp "$last" "$log"; then : >"$log"; fi
    local passed failed skipped lines=()
    mapfile -t lines < <(/usr/bin/python3 tools/count.py "$log" || echo "0 1 0")
    read -r passed failed skipped <<<"${lines[0]}"
    printf '%s\n' "${lines[@]:1}" | grep '^failed: ' || :
    if [ "$status" != 0 ] && [ "$failed" = 0 ]; then
        echo "ctest failed with status $status, but no test did"
        failed=1
    fi
    echo "$preset: $passed passed, $failed failed, $skipped skipped (full output in $log)"
    add_results "$passed" "$failed"
    mapfile -t -O ${#SKIPS[@]} SKIPS < <(printf '%s\n' "${lines[@]:1}" | sed -n "s/^skipped: /$preset /p")
}

# Runs each fuzzer one million times, or for half an hour, starting from its corpus. Inputs that crash it stay in build/fuzz/found.
run_fuzzers() {
    local fuzzer target
    for fuzzer in build/fuzz/tests/fuzz_*; do
        if [ ! -f "$fuzzer" ] || [ ! -x "$fuzzer" ]; then continue; fi
        target=${fuzzer##*/fuzz_}
        mkdir -p "build/fuzz/found/$target"
        step "fuzzing $target"
        if "$fuzzer" -runs=1000000 -max_total_time=1800 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
            -artifact_prefix="build/fuzz/found/$target-" "build/fuzz/found/$target" "tests/fuzz/corpus/$target" \
            >"$LOGS/fuzz-$target.log" 2>&1; then
            sed -n "s/^stat::number_of_executed_units: */fuzz_$target: executions /p" "$LOGS/fuzz-$target.log"
            add_results 1 0
        else
            tail -n 40 "$LOGS/fuzz-$target.log"
            add_results 0 1
        fi
    done
}

command_test() {
    local long=
    case ${1:-} in
    '') ;;
    --long) long=1 ;;
    *) die "test has one option: --long" ;;
    esac
    local extra=()
    mapfile -t extra < <(packages_node)
    [ -z "$long" ] || extra+=("${PACKAGES_FUZZ[@]}" "${PACKAGES_CROSS[@]}")
    need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_RUN[@]}" "${PACKAGES_TEST[@]}" "${PACKAGES_LINT[@]}" "${extra[@]}"
    lint_quick
    check "npm packages" npm_clients
    unpack_promtool
    if [ -n "$long" ]; then
        unpack_cmocka_arm64
        export TANDEM_TEST_LONG=1
    fi
    local options=(-DTANDEM_TEST_TIMEOUT_S=$((long ? 21600 : 600)))
    # What users get. Its assert() is off; both builds with sanitizers have it on.
    build release -DTANDEM_TESTS=ON -DTANDEM_WERROR=ON "${options[@]}"
    check clang-tidy lint_tidy release
    check "gcc -fanalyzer" lint_analyzer
    run_ctest release 'unit|kernel|golden|fuzz|lint|system|clients'
    options+=(-DTANDEM_ISA_FROM="$PWD/build/release")
    build asan "${options[@]}"
    run_ctest asan 'unit|fuzz|system|clients'
    build tsan "${options[@]}"
    run_ctest tsan 'unit|system'
    if [ -n "$long" ]; then
        build fuzz
        run_fuzzers
    fi
    show_results
}
