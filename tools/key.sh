# shellcheck shell=bash
# key.sh - ./tandem key: creates an API key for the gateway.

# The key file holds only the SHA-256 digest. The client needs the key itself, which is printed once, on stderr.
command_key() {
    [ $# -gt 0 ] || die "key needs a name: ./tandem key alice rate=60 tokens_per_day=1000000 >>api-keys"
    [[ $1 =~ ^[A-Za-z0-9._-]{1,64}$ ]] || die "a name is 1 to 64 letters, digits, '.', '_' and '-', not \"$1\""
    local key limit
    for limit in "${@:2}"; do
        [[ $limit =~ ^(rate|concurrency|max_tokens|tokens_per_minute|tokens_per_day)=[1-9][0-9]{0,8}$ ||
            $limit =~ ^models=[^,[:space:]]+(,[^,[:space:]]+)*$ ]] ||
            die "limits are rate=N, concurrency=N, max_tokens=N, tokens_per_minute=N, tokens_per_day=N and models=A,B, not \"$limit\""
    done
    key=sk-$(head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
    echo "the key (it is not shown again): $key" >&2
    printf '%s ' "$1" "sha256:$(printf %s "$key" | sha256sum | cut -d ' ' -f 1)" "${@:2}"
    echo
}
