# shellcheck shell=bash
# services.sh - starts, watches and stops the services of ./tandem up.
#
# Uses the settings of up.sh: MODEL, DRAFT_MODEL, DRAFT_QUANTIZE, PORT, PROPOSER, and RUN, the folder of the
# unix sockets. SERVICES holds the names of the services to run, in the order of their start.

declare -gA PID=() # service -> process id, once the service was started
PROPOSER_WAIT_S=10 # ./tandem up waits this long for a proposer to connect

alive() { [ -n "${PID[$1]:-}" ] && kill -0 "${PID[$1]}" 2>/dev/null; }

fetch() { curl -s --noproxy '*' --max-time 5 "$@"; }

# Prints the last error in a service's log, without time and level, or where the log is.
last_error() {
    local log=$LOGS/$1.log line
    line=$(sed -nE 's/^[^ ]+ [^ ]+ [^ ]+ error: //p' "$log" | tail -n 1)
    printf '%s' "${line:-its log is $log}"
}

# launch SERVICE [ARGUMENT...]: starts the service in a new session, so that Ctrl-C reaches only this script. The
# service gets SIGTERM if this script is killed. Only the verifier gets the settings that apply to one service.
launch() {
    local name=$1
    shift
    local environment=(env)
    [ "$name" = verifier-svc ] || environment=(env -u TANDEM_CONFIG -u TANDEM_NAME -u TANDEM_INSTANCE -u TANDEM_THREADS)
    setsid setpriv --pdeathsig TERM "${environment[@]}" "$BIN/$name" "$@" >>"$LOGS/$name.log" 2>&1 </dev/null &
    PID[$name]=$!
}

needs_draft_model() { [ "$PROPOSER" = draft ] || [ "$PROPOSER" = cascade ]; }

start_service() {
    case $1 in
    proposer-svc)
        local draft=()
        ! needs_draft_model || draft=(--draft-model "$DRAFT_MODEL" --draft-quantize "$DRAFT_QUANTIZE")
        launch "$1" --listen "unix:$RUN/proposer.sock" --admin-listen "unix:$RUN/proposer-admin.sock" \
            --proposer "$PROPOSER" "${draft[@]}"
        ;;
    verifier-svc)
        local proposers=none
        [ "$PROPOSER" = none ] || proposers=unix:$RUN/proposer.sock
        launch "$1" --listen "unix:$RUN/verifier.sock" --admin-listen "unix:$RUN/verifier-admin.sock" \
            --model "$MODEL" --proposers "$proposers"
        ;;
    gateway)
        launch "$1" --listen "127.0.0.1:$PORT" --verifiers "unix:$RUN/verifier.sock"
        ;;
    esac
}

# Prints one line about /health; tools/health.py describes it. Prints nothing while the gateway does not answer.
read_health() { fetch "http://127.0.0.1:$PORT/health" | /usr/bin/python3 tools/health.py; }

# Waits until all services in SERVICES are healthy. Answers need no proposer, so after PROPOSER_WAIT_S seconds this
# function continues without a proposer. It returns immediately if the only missing proposer was not started yet.
wait_healthy() {
    local name health shown='' ready_at=''
    while :; do
        for name in "${SERVICES[@]}"; do
            alive "$name" || fail_start "$name did not start: $(last_error "$name")"
        done
        health=$(read_health) || health=''
        case $health in
        ok*) break ;;
        without*)
            [ -n "${PID[proposer-svc]:-}" ] || return 0
            ready_at=${ready_at:-$SECONDS}
            ((SECONDS - ready_at < PROPOSER_WAIT_S)) || {
                echo "${health#without }; continuing without drafts (see $LOGS/proposer-svc.log)"
                return
            }
            ;;
        "$shown" | '') ;;
        *) echo "$health" && shown=$health ;;
        esac
        sleep 0.2
    done
    echo "all healthy: ${health#ok }"
}

# start_services SERVICE...: starts these services and waits until all in SERVICES are healthy.
start_services() {
    local name
    step "starting $* (logs in $LOGS/)"
    for name in "$@"; do
        : >"$LOGS/$name.log"
        start_service "$name"
    done
    wait_healthy
}

# Restarts each service that has ended, and prints why it ended.
restart_dead() {
    local name rc
    for name in "${SERVICES[@]}"; do
        alive "$name" && continue
        rc=0
        wait "${PID[$name]}" 2>/dev/null || rc=$?
        [ -n "$TERMINAL" ] && printf '\r\e[K'
        echo "$name ended with status $rc: $(last_error "$name"); starting it again"
        sleep 1
        start_service "$name"
    done
}

# Stops the services, gateway first. Each may finish its running requests before the next one is stopped.
# A second Ctrl-C kills all of them.
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

stop_and_exit() {
    [ -n "$TERMINAL" ] && printf '\r\e[K'
    echo "stopping: running requests may finish (press Ctrl-C again to stop immediately)"
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
