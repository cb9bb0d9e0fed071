# shellcheck shell=bash
# up.sh - ./tandem up: starts the services, shows one answer, then shows the traffic until Ctrl-C.

. tools/services.sh

EMBEDDED_MODEL=models/tales-11m-q8_0.gguf EMBEDDED_DRAFT=models/tales-1m-q8_0.gguf

up_usage() {
    cat <<'TEXT'
usage: ./tandem up [OPTIONS]

Builds Tandem, starts a proposer, a verifier and a gateway on this machine and streams one answer.
Then it shows the traffic. Ctrl-C lets running requests finish and stops all three services.

  --model FILE           GGUF model to serve (default: the embedded models/tales-11m-q8_0.gguf)
  --port N               port of the HTTP API on 127.0.0.1, 1..65535 (default: 8080)
  --proposer NAME        the proposer that drafts (default: suffix):
                           none     no drafts
                           ngram    what followed the same n-gram in the context
                           suffix   the most frequent continuation in context and past outputs
                           draft    a small draft model
                           cascade  ngram first, and the draft model where it promises more
  --draft-model FILE     GGUF model for draft and cascade
                         (default: models/tales-1m-q8_0.gguf for the embedded model)
  --draft-quantize TYPE  no, q8_0 or q4_0: quantize the draft model when it is loaded (default: no).
                         With q4_0 the served model can also be its own draft model.
  --help                 show this text

The environment can hold settings of the services; docs/configuration.md lists them. TANDEM_CONFIG
(a file of settings), TANDEM_NAME, TANDEM_INSTANCE and TANDEM_THREADS apply only to the verifier.
TEXT
}

# ---- options ----

check_model_file() {
    [ -e "$1" ] || die "there is no model file $1"
    [ -r "$1" ] || die "the model file $1 cannot be read"
    [ -f "$1" ] || die "$1 is not a file"
    [ "$(head -c 4 "$1")" = GGUF ] || die "$1 is not a GGUF file"
}

check_draft_model() {
    [ -n "$DRAFT_MODEL" ] || [ "$MODEL" != "$EMBEDDED_MODEL" ] || DRAFT_MODEL=$EMBEDDED_DRAFT
    [ -n "$DRAFT_MODEL" ] || die "--proposer $PROPOSER needs --draft-model: a small model with the vocabulary of $MODEL"
    check_model_file "$DRAFT_MODEL"
}

check_options() {
    if ! [[ $PORT =~ ^[0-9]{1,5}$ ]] || ((10#$PORT < 1 || 10#$PORT > 65535)); then
        die "--port must be 1..65535, not \"$PORT\""
    fi
    case $PROPOSER in
    none | ngram | suffix | draft | cascade) ;;
    chain) # the old name of cascade
        warn "--proposer chain is now called cascade; please use the new name"
        PROPOSER=cascade
        ;;
    *) die "--proposer must be none, ngram, suffix, draft or cascade, not \"$PROPOSER\"" ;;
    esac
    check_model_file "$MODEL"
    ! needs_draft_model || check_draft_model
    case $DRAFT_QUANTIZE in
    no | q8_0 | q4_0) ;;
    *) die "--draft-quantize must be no, q8_0 or q4_0, not \"$DRAFT_QUANTIZE\"" ;;
    esac
    ! (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null || die "port $PORT is taken; choose another with --port"
    check_memory
}

# Refuses models whose weights alone exceed the available memory. The services check their full requirement (KV
# cache, buffers) before they allocate.
check_memory() {
    local model_mib draft_mib=0 also='' free_mib
    model_mib=$(($(stat -L -c %s "$MODEL") >> 20))
    free_mib=$(($(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) >> 10))
    if needs_draft_model; then
        draft_mib=$(($(stat -L -c %s "$DRAFT_MODEL") >> 20))
        case $DRAFT_QUANTIZE in # bits per weight after quantizing, over the 32 bits of an F32 file
        q8_0) draft_mib=$((draft_mib * 17 / 64)) ;; # 8.5
        q4_0) draft_mib=$((draft_mib * 9 / 64)) ;;  # 4.5
        esac
        also=", the draft model $draft_mib"
    fi
    ((model_mib + draft_mib < free_mib)) ||
        die "too little memory: the model needs $model_mib MiB$also and $free_mib MiB are free"
}

read_options() {
    MODEL=$EMBEDDED_MODEL DRAFT_MODEL=${TANDEM_DRAFT_MODEL:-} DRAFT_QUANTIZE=${TANDEM_DRAFT_QUANTIZE:-no}
    PORT=8080 PROPOSER=suffix
    while [ $# -gt 0 ]; do
        case $1 in
        --help | -h) up_usage && exit ;;
        --model=* | --port=* | --proposer=* | --draft-model=* | --draft-quantize=*)
            set -- "${1%%=*}" "${1#*=}" "${@:2}"
            ;;
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
}

# ---- the first answer ----

CHAT='{"messages":[{"role":"user","content":"Write a story about a dog named Max."}],"stream":true,"temperature":0,"max_tokens":200}'
COMPLETION='{"prompt":"Once upon a time","stream":true,"temperature":0,"max_tokens":200}'

# stream_answer PATH BODY: prints one answer while it is generated. Status 3: the model has no chat template.
stream_answer() {
    curl -sN --noproxy '*' --max-time 120 "http://127.0.0.1:$PORT$1" -H 'Content-Type: application/json' -d "$2" |
        /usr/bin/python3 tools/stream.py
}

# Shows one answer, how many of its draft tokens were accepted, and the curl command that repeats the request.
show_answer() {
    local path=/v1/chat/completions body=$CHAT rc=0
    step "one request"
    echo "> Write a story about a dog named Max."
    stream_answer "$path" "$body" || rc=$?
    if [ $rc = 3 ]; then
        path=/v1/completions body=$COMPLETION rc=0
        printf '> Once upon a time'
        stream_answer "$path" "$body" || rc=$?
    fi
    [ $rc = 0 ] || return $rc
    fetch "http://127.0.0.1:$PORT/v1/spec_decode/metrics" | /usr/bin/python3 tools/acceptance.py
    cat <<TEXT

The same request with curl:

  curl -N http://127.0.0.1:$PORT$path -H 'Content-Type: application/json' \\
    -d '$body'

TEXT
}

# ---- traffic ----

# Prints "TOKENS RUNNING WAITING ALPHA TAU", from /metrics and /v1/spec_decode/metrics.
read_traffic() {
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

# On a terminal, one line is updated every second. Otherwise a line is printed every ten seconds if it changed.
# Services that end are started again.
show_traffic() {
    local period=10 i tokens running waiting alpha tau rate last='' line shown=''
    [ -z "$TERMINAL" ] || period=1
    for ((i = 0; ; i++)); do
        sleep 1 &
        wait $! || :
        restart_dead
        ((i % period == 0)) || continue
        read -r tokens running waiting alpha tau < <(read_traffic)
        rate=$((tokens > ${last:-$tokens} ? (tokens - last) / period : 0))
        last=$tokens
        line="tokens/s $rate  alpha $alpha  tau $tau  running $running  waiting $waiting"
        if [ -n "$TERMINAL" ]; then
            printf '\r\e[K%s' "$line"
        elif [ "$line" != "$shown" ]; then
            echo "$line"
        fi
        shown=$line
    done
}

# ---- the command ----

start_all() {
    if needs_draft_model; then
        # The proposer is started after the verifier is healthy. Both size their memory by the available memory,
        # so one model must be loaded before the other service measures.
        SERVICES=(verifier-svc gateway)
        start_services "${SERVICES[@]}"
        SERVICES=(proposer-svc "${SERVICES[@]}")
        start_services proposer-svc
    else
        [ "$PROPOSER" != none ] || SERVICES=(verifier-svc gateway)
        start_services "${SERVICES[@]}"
    fi
}

command_up() {
    read_options "$@"
    check_options
    # The services run in this folder, not in the caller's.
    [ -z "${TANDEM_CONFIG:-}" ] || TANDEM_CONFIG=$(cd "$CALLED_FROM" && realpath -ms -- "$TANDEM_CONFIG")
    if [ -z "${TANDEM_BIN:-}" ]; then
        need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_RUN[@]}"
        build release
    fi
    mkdir -p "$LOGS"

    RUN=$(mktemp -d "${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/tandem.XXXXXX")
    trap stop_and_exit INT TERM
    start_all
    show_answer & # in the background: bash runs a trap only between commands, but wait returns immediately
    wait $! || fail_start "the first request failed: $(last_error gateway)"
    step "serving on http://127.0.0.1:$PORT; press Ctrl-C to stop"
    show_traffic 2>/dev/null # hides bash's messages about killed children
}
