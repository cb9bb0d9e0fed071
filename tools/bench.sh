# shellcheck shell=bash
# bench.sh - ./tandem bench.

bench_usage() {
    cat <<'TEXT'
usage: ./tandem bench [NAME [OPTIONS]]

Builds the release preset and runs one benchmark. Without NAME it runs all benchmarks that need only
this checkout. Every benchmark except kernels has --help.

  kernels      single matrix products and thread barriers
  decode       forward passes of 1, 8 and 16 sequences, beside llama.cpp
  verify       forward passes of 1 to 64 rows of one sequence, beside llama.cpp
  prefill      prompts of 128 and 512 tokens, beside llama.cpp
  spec         greedy text with a draft model inside the engine, beside llama.cpp without drafts
  peers        one table: 1, 8 and 16 rows and a prompt, six types of weights, all peers
  speculation  pairs|sweep|rules|texts: the running services with and without drafts
  overlap      drafting while the verifier verifies, compared with alternating
  neighbours   what the worst tool schemas and outputs add to the gaps of other streams
  prefix       prefix cache and KV disk: speed-up of hits and overhead of misses
  connections  an address that takes all connections: what others wait
  serve        traffic on the running services or any OpenAI-compatible server: latencies, report
TEXT
}

# The benchmarks that need only this checkout.
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
    step "startup"
    /usr/bin/python3 tests/bench/startup.py "$BIN"
}

command_bench() {
    local program
    case ${1:-} in
    '') program=(bench_all) ;;
    --help | -h) bench_usage && exit ;;
    kernels | neighbours) program=("$PWD/build/release/tests/bench_$1" "${@:2}") ;;
    decode | verify | prefill | spec) program=(/usr/bin/python3 "$PWD/tests/bench/engine.py" "$@") ;;
    peers | speculation | overlap | prefix | serve | connections) program=(/usr/bin/python3 "$PWD/tests/bench/$1.py" "${@:2}") ;;
    *) die "there is no benchmark \"$1\" (./tandem bench --help)" ;;
    esac
    local extra=() # llama.cpp is installed with npm
    if [[ ${program[1]:-} = */@(engine|peers).py && ! " $* " =~ " --peer"[=\ ]"no " ]]; then
        mapfile -t extra < <(packages_node)
    fi
    # Neither --help nor a server that runs elsewhere (serve --url) needs a build.
    if [[ " $* " != *" --help "* && ! "$* " =~ ^serve\ .*--url[=\ ] ]]; then
        need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_RUN[@]}" libcmocka-dev "${extra[@]}"
        build release -DTANDEM_TESTS=ON
    fi
    if [ $# -gt 0 ]; then cd "$CALLED_FROM" || exit; fi # paths in the options are relative to this folder
    "${program[@]}"
}
