# lint.sh - ./tandem lint and ./tandem fmt.

sources() { git ls-files '*.c' '*.h'; }

command_fmt() {
    need_packages clang-format "${PACKAGES_BUILD[@]}"
    sources | xargs -r clang-format -i
    build release
    write_configuration
}

# Keeps the text before the first heading of a service and writes the tables below it.
write_configuration() {
    local page=docs/configuration.md name
    {
        sed '/^## /,$d' $page
        for name in "${SERVICES[@]}"; do
            printf '## %s\n\n' "$name"
            "$BIN/$name" --print-config
            echo
        done
    } >build/configuration.md
    mv build/configuration.md $page
}

lint_format() { sources | xargs clang-format --dry-run -Werror; }

lint_tidy() { git ls-files '*.c' | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/dev 2>/dev/null; }

lint_cppcheck() {
    cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability --inline-suppr -j "$(nproc)" \
        --suppressions-list=tests/lint/cppcheck.txt -Icommon -I. -D_GNU_SOURCE common proposer-svc verifier-svc gateway
}

# Findings are "FILE KIND"; those in tests/lint/analyzer.txt are known to be false.
lint_analyzer() {
    rm -rf build/analyze
    (build analyze) >"$LOGS/analyzer.log" 2>&1 || return
    local new
    new=$(sed -nE "s#^$PWD/([^:]*):.* \[-W(analyzer-[a-z-]*)\]\$#\1 \2#p" "$LOGS/analyzer.log" | sort -u |
        comm -23 - <(grep -v '^#' tests/lint/analyzer.txt | sort -u))
    [ -z "$new" ] || echo "$new (see $LOGS/analyzer.log)"
    [ -z "$new" ]
}

command_lint() {
    need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_LINT[@]}" libcmocka-dev python3
    build dev
    check clang-format lint_format
    check "include arrows" /usr/bin/python3 tests/lint/test_arrows.py
    check cppcheck lint_cppcheck
    check clang-tidy lint_tidy
    check "gcc -fanalyzer" lint_analyzer
    echo
    echo "$N_PASSED passed, $N_FAILED failed"
    [ "$N_FAILED" = 0 ]
}
