# shellcheck shell=bash
# coverage.sh - ./tandem coverage.
# shellcheck source=/dev/null
. tools/test.sh

# coverage [LABEL...]: runs the tests with these labels and prints which part of the code they ran. A service adds
# its counts when it ends; one that is killed (SIGKILL, an abort) loses them.
command_coverage() {
    local labels=("$@") label needed=("${PACKAGES_BUILD[@]}" "${PACKAGES_RUN[@]}" libcmocka-dev) extra=()
    [ $# != 0 ] || labels=(unit fuzz system clients)
    for label in "${labels[@]}"; do
        case $label in
        unit | golden | kernel | fuzz) ;;
        system | clients)
            mapfile -t extra < <(packages_node)
            needed+=("${PACKAGES_TEST[@]}" "${extra[@]}")
            ;;
        *) die "there are no tests $label; the labels are unit, golden, kernel, fuzz, system and clients" ;;
        esac
    done
    need_packages "${needed[@]}"
    [[ " ${labels[*]} " != *" clients "* ]] || check "npm packages" npm_clients
    build coverage
    find build/coverage -name '*.gcda' -delete # counts of the last run
    run_ctest coverage "$(IFS='|' && echo "${labels[*]}")"
    step "coverage"
    /usr/bin/python3 tools/coverage.py build/coverage | tee build/coverage/folders.txt
    echo "build/coverage/uncovered/FILE.txt lists what did not run"
    show_results
}
