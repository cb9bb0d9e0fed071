# key.sh - ./tandem key.

# The file holds the digest; whoever asks needs the key, which is shown this once.
command_key() {
    [ $# -gt 0 ] || die "key needs a name: ./tandem key alice rate=60 >>api-keys"
    [[ $1 =~ ^[A-Za-z0-9._-]{1,64}$ ]] || die "a name is 1 to 64 letters, digits, '.', '_' and '-', not \"$1\""
    local key limit
    for limit in "${@:2}"; do
        [[ $limit =~ ^(rate|concurrency|max_tokens)=[1-9][0-9]{0,8}$ ]] ||
            die "limits are rate=N, concurrency=N and max_tokens=N, not \"$limit\""
    done
    key=sk-$(head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
    echo "the key, which is shown only now: $key" >&2
    printf '%s ' "$1" "sha256:$(printf %s "$key" | sha256sum | cut -d ' ' -f 1)" "${@:2}"
    echo
}
