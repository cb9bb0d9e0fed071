# up.sh - ./tandem up.

up_usage() {
    cat <<'TEXT'
usage: ./tandem up [OPTIONS]

Builds Tandem, starts proposer, verifier and gateway on this machine, streams one answer and then shows
the load until Ctrl-C, which lets running requests finish and stops all three.

  --model FILE           GGUF model to serve           (default: the embedded models/tales-11m-q8_0.gguf)
  --port N               port of the HTTP API, 1..65535 (default: 8080, on 127.0.0.1)
  --proposer NAME        who drafts: none, ngram, suffix, draft or chain, which is ngram and draft (default: suffix)
  --draft-model FILE     GGUF model that drafts        (default: models/tales-1m-q8_0.gguf for the embedded model)
  --draft-quantize no|q8_0|q4_0  round it when it is loaded; with q4_0 a model may draft for itself
  --help                 this text

Settings of the services may be given in the environment: docs/configuration.md lists them. A file of settings
(TANDEM_CONFIG), TANDEM_NAME, TANDEM_INSTANCE and TANDEM_THREADS are taken as the verifier's.
TEXT
}

declare -gA PID=() # of each running service
EMBEDDED_MODEL=models/tales-11m-q8_0.gguf EMBEDDED_DRAFT=models/tales-1m-q8_0.gguf

# The last error of a service's log without its prefix.
last_words() {
    local log=$LOGS/$1.log line
    line=$(sed -nE 's/^[^ ]+ [^ ]+ [^ ]+ error: //p' "$log" | tail -n 1)
    printf '%s' "${line:-its log is $log}"
}

alive() { [ -n "${PID[$1]:-}" ] && kill -0 "${PID[$1]}" 2>/dev/null; }

# A session of its own, so that Ctrl-C reaches only this script; TERM if this script is killed.
launch() {
    local name=$1
    shift
    local own=(env)
    [ "$name" = verifier-svc ] || own=(env -u TANDEM_CONFIG -u TANDEM_NAME -u TANDEM_INSTANCE -u TANDEM_THREADS)
    setsid setpriv --pdeathsig TERM "${own[@]}" "$BIN/$name" "$@" >>"$LOGS/$name.log" 2>&1 </dev/null &
    PID[$name]=$!
}

needs_draft_model() { [ "$PROPOSER" = draft ] || [ "$PROPOSER" = chain ]; }

start_service() {
    case $1 in
    proposer-svc)
        local draft=()
        ! needs_draft_model || draft=(--draft-model "$DRAFT_MODEL" --draft-quantize "$DRAFT_QUANTIZE")
        launch "$1" --listen "unix:$RUN/proposer.sock" --proposer "$PROPOSER" "${draft[@]}"
        ;;
    verifier-svc)
        local proposers=none
        [ "$PROPOSER" = none ] || proposers=unix:$RUN/proposer.sock
        launch "$1" --listen "unix:$RUN/verifier.sock" --model "$MODEL" --proposers "$proposers"
        ;;
    gateway)
        launch "$1" --listen "127.0.0.1:$PORT" --verifiers "unix:$RUN/verifier.sock"
        ;;
    esac
}

# Stops what runs, gateway first, each after its own drain. A second Ctrl-C kills.
stop_services() {
    trap 'kill -KILL "${PID[@]}" 2>/dev/null || :' INT TERM
    local i name
    for ((i = ${#SERVICES[@]} - 1; i >= 0; i--)); do
        name=${SERVICES[i]}
        if alive "$name"; then
            kill -TERM "${PID[$name]}" 2>/dev/null || :
            while alive "$name"; do wait "${PID[$name]}" 2>/dev/null || :; done
        fi
    done
    PID=()
}

stop_and_leave() {
    [ -n "$TERMINAL" ] && printf '\r\e[K'
    echo "stopping: running requests may finish (again Ctrl-C: at once)"
    stop_services
    rm -rf "$RUN"
    echo "stopped"
    exit 0
}

fail_start() {
    stop_services
    rm -rf "$RUN"
    die "$@"
}

check_model_file() {
    [ -e "$1" ] || die "there is no model file $1"
    [ -r "$1" ] || die "the model file $1 cannot be read"
    [ -f "$1" ] || die "$1 is not a file"
    [ "$(head -c 4 "$1")" = GGUF ] || die "$1 is not a GGUF file"
}

check_options() {
    if ! [[ $PORT =~ ^[0-9]{1,5}$ ]] || ((10#$PORT < 1 || 10#$PORT > 65535)); then
        die "--port must be 1..65535, not \"$PORT\""
    fi
    case $PROPOSER in none | ngram | suffix | draft | chain) ;; *) die "--proposer must be none, ngram, suffix, draft or chain, not \"$PROPOSER\"" ;; esac
    check_model_file "$MODEL"
    if needs_draft_model; then
        [ -n "$DRAFT_MODEL" ] || [ "$MODEL" != "$EMBEDDED_MODEL" ] || DRAFT_MODEL=$EMBEDDED_DRAFT
        [ -n "$DRAFT_MODEL" ] || die "--proposer $PROPOSER needs --draft-model: a small model with the vocabulary of $MODEL"
        check_model_file "$DRAFT_MODEL"
    fi
    case $DRAFT_QUANTIZE in no | q8_0 | q4_0) ;; *) die "--draft-quantize must be no, q8_0 or q4_0, not \"$DRAFT_QUANTIZE\"" ;; esac
    ! (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null || die "port $PORT is taken; choose another with --port"
    check_memory
}

# What the weights take at least; the services reckon the rest before they take anything.
check_memory() {
    local model_mib draft_mib=0 also='' free_mib
    model_mib=$(($(stat -L -c %s "$MODEL") >> 20))
    free_mib=$(($(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) >> 10))
    if needs_draft_model; then
        draft_mib=$(($(stat -L -c %s "$DRAFT_MODEL") >> 20))
        case $DRAFT_QUANTIZE in # bits of a weight, of the 32 that it may have in the file
        q8_0) draft_mib=$((draft_mib * 17 / 64)) ;;
        q4_0) draft_mib=$((draft_mib * 9 / 64)) ;;
        esac
        also=", the draft model $draft_mib"
    fi
    ((model_mib + draft_mib < free_mib)) ||
        die "too little memory: the model needs $model_mib MiB$also and $free_mib MiB are free"
}

fetch() { curl -s --noproxy '*' --max-time 5 "$@"; }

# One line of what /health says: "ok TEXT" when everything serves, "without TEXT" when only proposers are
# missing, else what is awaited.
read_health() {
    fetch "http://127.0.0.1:$PORT/health" | /usr/bin/python3 tools/health.py
}

# A proposer is waited for only PROPOSER_WAIT_S: without it everything works, only slower. One that has not
# been started is not waited for.
PROPOSER_WAIT_S=10
wait_healthy() {
    local name health said='' ready_at=''
    while :; do
        for name in "${SERVICES[@]}"; do
            alive "$name" || fail_start "$name did not start: $(last_words "$name")"
        done
        health=$(read_health) || health=''
        case $health in
        ok*) break ;;
        without*)
            [ -n "${PID[proposer-svc]:-}" ] || return 0
            ready_at=${ready_at:-$SECONDS}
            ((SECONDS - ready_at < PROPOSER_WAIT_S)) || {
                echo "${health#without }: going on without drafts (its log is $LOGS/proposer-svc.log)"
                return
            }
            ;;
        "$said" | '') ;;
        *) echo "$health" && said=$health ;;
        esac
        sleep 0.2
    done
    echo "all healthy: ${health#ok }"
}

# Starts these and waits until all that have been started are healthy.
start_services() {
    local name
    step "starting $* (logs in $LOGS/)"
    for name in "$@"; do
        : >"$LOGS/$name.log"
        start_service "$name"
    done
    wait_healthy
}

CHAT='{"messages":[{"role":"user","content":"Write a story about a dog named Max."}],"stream":true,"temperature":0,"max_tokens":200}'
COMPLETION='{"prompt":"Once upon a time","stream":true,"temperature":0,"max_tokens":200}'

# ask PATH BODY: one streamed answer, printed as it comes. Status 3: the model has no chat template.
ask() {
    curl -sN --noproxy '*' --max-time 120 "http://127.0.0.1:$PORT$1" -H 'Content-Type: application/json' -d "$2" |
        /usr/bin/python3 tools/stream.py
}

# An answer, what speculation did for it, and the curl that does the same.
show_answer() {
    local path=/v1/chat/completions body=$CHAT rc=0
    step "one request"
    echo "> Write a story about a dog named Max."
    ask "$path" "$body" || rc=$?
    if [ $rc = 3 ]; then
        path=/v1/completions body=$COMPLETION rc=0
        printf '> Once upon a time'
        ask "$path" "$body" || rc=$?
    fi
    [ $rc = 0 ] || return $rc
    fetch "http://127.0.0.1:$PORT/v1/spec_decode/metrics" | /usr/bin/python3 tools/acceptance.py
    cat <<TEXT

The same with curl:

  curl -N http://127.0.0.1:$PORT$path -H 'Content-Type: application/json' \\
    -d '$body'

TEXT
}

# "TOKENS RUNNING WAITING ALPHA TAU" from the two endpoints.
read_load() {
    {
        fetch "http://127.0.0.1:$PORT/metrics"
        fetch "http://127.0.0.1:$PORT/v1/spec_decode/metrics" | tr ',' '\n' | tr -d '{}" '
    } | awk '/^tandem_generation_tokens_total[{ ]/ { tokens += $NF }
        /^tandem_num_requests_running[{ ]/ { running += $NF }
        /^tandem_num_requests_waiting[{ ]/ { waiting += $NF }
        /^acceptance_rate_overall:/ { sub(/.*:/, ""); alpha = $0 }
        /^avg_tokens_per_step:/ { sub(/.*:/, ""); tau = $0 }
        END { printf "%d %d %d %.2f %.2f\n", tokens, running, waiting, alpha, tau }'
}

restart_dead() {
    local name rc
    for name in "${SERVICES[@]}"; do
        alive "$name" && continue
        rc=0
        wait "${PID[$name]}" 2>/dev/null || rc=$?
        [ -n "$TERMINAL" ] && printf '\r\e[K'
        echo "$name ended with status $rc: $(last_words "$name"); starting it again"
        sleep 1
        start_service "$name"
    done
}

# A line a second, in place; without a terminal every ten seconds, if it changed.
show_load() {
    local period=10 i tokens running waiting alpha tau rate last='' line said=''
    [ -z "$TERMINAL" ] || period=1
    for ((i = 0; ; i++)); do
        sleep 1 &
        wait $! || :
        restart_dead
        ((i % period == 0)) || continue
        read -r tokens running waiting alpha tau < <(read_load)
        rate=$((tokens > ${last:-$tokens} ? (tokens - last) / period : 0))
        last=$tokens
        line="tokens/s $rate  alpha $alpha  tau $tau  running $running  waiting $waiting"
        if [ -n "$TERMINAL" ]; then
            printf '\r\e[K%s' "$line"
        elif [ "$line" != "$said" ]; then
            echo "$line"
        fi
        said=$line
    done
}

command_up() {
    MODEL=$EMBEDDED_MODEL DRAFT_MODEL=${TANDEM_DRAFT_MODEL:-} DRAFT_QUANTIZE=${TANDEM_DRAFT_QUANTIZE:-no} PORT=8080 PROPOSER=suffix
    while [ $# -gt 0 ]; do
        case $1 in
        --help | -h) up_usage && exit ;;
        --model=* | --port=* | --proposer=* | --draft-model=* | --draft-quantize=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        --model | --port | --proposer | --draft-model | --draft-quantize)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
            --model) MODEL=$(cd "$CALLED_FROM" && realpath -ms -- "$2") ;;
            --draft-model) DRAFT_MODEL=$(cd "$CALLED_FROM" && realpath -ms -- "$2") ;;
            --draft-quantize) DRAFT_QUANTIZE=$2 ;;
            --port) PORT=$2 ;;
            --proposer) PROPOSER=$2 ;;
            esac
            shift 2
            ;;
        *) die "up has no option $1 (./tandem up --help)" ;;
        esac
    done
    check_options
    # The services run in this folder, not where the caller stands.
    [ -z "${TANDEM_CONFIG:-}" ] || TANDEM_CONFIG=$(cd "$CALLED_FROM" && realpath -ms -- "$TANDEM_CONFIG")
    if [ -z "${TANDEM_BIN:-}" ]; then
        need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_RUN[@]}"
        build release
    fi
    mkdir -p "$LOGS"

    RUN=$(mktemp -d "${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/tandem.XXXXXX")
    trap stop_and_leave INT TERM
    if needs_draft_model; then # after the model: each reckons with the memory that the one before it left
        SERVICES=(verifier-svc gateway)
        start_services "${SERVICES[@]}"
        SERVICES=(proposer-svc "${SERVICES[@]}")
        start_services proposer-svc
    else
        [ "$PROPOSER" != none ] || SERVICES=(verifier-svc gateway)
        start_services "${SERVICES[@]}"
    fi
    show_answer & # in the background, so that a signal is seen at once
    wait $! || fail_start "the first request failed: $(last_words gateway)"
    step "serving on http://127.0.0.1:$PORT, Ctrl-C stops"
    show_load 2>/dev/null # the shell's own remarks about killed children
}
