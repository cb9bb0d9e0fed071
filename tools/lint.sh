# shellcheck shell=bash
# lint.sh - ./tandem lint and ./tandem fmt.

sources() { git ls-files '*.c' '*.h'; }

command_fmt() {
    need_packages clang-format "${PACKAGES_BUILD[@]}"
    sources | xargs -r clang-format -i
    build release
    write_configuration
    write_models
}

# Regenerates docs/configuration.md. The text before the first service's heading stays. The tables of settings are
# the output of each service's --print-config.
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

# Regenerates the table of docs/models.md, with which the page ends.
write_models() {
    local page=docs/models.md
    { sed '/^| architecture /,$d' $page && "$BIN/verifier-svc" --print-models; } >build/models.md
    mv build/models.md $page
}

lint_format() { sources | xargs clang-format --dry-run -Werror; }

# lint_tidy PRESET: with the commands and generated headers of this build. Emulated kernels are left out, since clang
# does not take the constants of simde's macros.
lint_tidy() {
    local commands=build/$1/tidy
    mkdir -p "$commands"
    /usr/bin/python3 -c 'import json, sys
json.dump([c for c in json.load(sys.stdin) if "kernel_emulated" not in c["command"]], sys.stdout)' \
        <"build/$1/compile_commands.json" >"$commands/compile_commands.json"
    git ls-files '*.c' | grep -v '^tests/lib/emulated/' |
        xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p "$commands" 2>/dev/null
}

lint_cppcheck() {
    cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability --inline-suppr -j "$(nproc)" \
        --suppressions-list=tests/lint/cppcheck.txt -Icommon -I. -D_GNU_SOURCE common proposer-svc verifier-svc gateway
}

# tests/lint/analyzer.txt lists the known false positives.
lint_analyzer() {
    rm -rf build/analyze
    (build analyze) >"$LOGS/analyzer.log" 2>&1 || return
    local new
    new=$(/usr/bin/python3 tools/analyzer.py "$LOGS/analyzer.log" tests/lint/analyzer.txt) || return
    [ -z "$new" ] || echo "$new (see $LOGS/analyzer.log)"
    [ -z "$new" ]
}

# The checkers that need no build.
lint_quick() {
    check clang-format lint_format
    check cppcheck lint_cppcheck
}

command_lint() {
    need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_LINT[@]}" libcmocka-dev python3
    build dev
    lint_quick
    local script
    for script in tests/lint/test_*.py; do check "$script" /usr/bin/python3 "$script"; done
    check clang-tidy lint_tidy dev
    check "gcc -fanalyzer" lint_analyzer
    show_results
}
