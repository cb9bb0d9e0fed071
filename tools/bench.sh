# bench.sh - ./tandem bench.

# Everything that needs nothing but this checkout.
bench_all() {
    local bench model
    for bench in build/release/tests/bench_*; do
        if [ ! -f "$bench" ] || [ ! -x "$bench" ]; then continue; fi
        step "${bench##*/}"
        "$bench"
    done
    for model in --model=models/tales-11m-q8_0.gguf --shape=0.1b --shape=1b; do
        for bench in decode verify prefill; do
            step "$bench ${model#--}"
            /usr/bin/python3 tests/bench/engine.py "$bench" "$model" --peer no
        done
    done
    step "services"
    /usr/bin/python3 tests/bench/services.py "$BIN"
}

command_bench() {
    local program
    case ${1:-} in
    '') program=(bench_all) ;;
    kernels) program=("$PWD/build/release/tests/bench_kernels" "${@:2}") ;;
    decode | verify | prefill | spec) program=(/usr/bin/python3 "$PWD/tests/bench/engine.py" "$@") ;;
    speculation | overlap | prefix | serve) program=(/usr/bin/python3 "$PWD/tests/bench/$1.py" "${@:2}") ;;
    *) die "bench runs kernels, decode, verify, prefill, spec, speculation, overlap, prefix, serve, or without a word everything, not \"$1\"" ;;
    esac
    local extra=()
    if [[ ${program[1]:-} = */engine.py && ! " $* " =~ " --peer"[=\ ]"no " ]]; then mapfile -t extra < <(packages_node); fi
    # A server that runs elsewhere needs nothing that is built here.
    if [[ " $* " != *" --help "* && ! "$* " =~ ^serve\ .*--url[=\ ] ]]; then
        need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_RUN[@]}" libcmocka-dev "${extra[@]}"
        build release -DTANDEM_TESTS=ON
    fi
    if [ $# -gt 0 ]; then cd "$CALLED_FROM"; fi # where the files named in its options are
    "${program[@]}"
}
