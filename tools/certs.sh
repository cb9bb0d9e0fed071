# shellcheck shell=bash
# certs.sh - ./tandem certs: an authority and the certificates of services on several hosts.

CERTS_ROLES='gateway verifier proposer operator client'
CERTS_CA_DAYS=3650

usage_certs() {
    cat <<'TEXT'
usage: ./tandem certs [--days N] DIR [ROLE[.LABEL][=HOST,...]]...

Creates an authority in DIR (ca.pem, ca.key) unless it exists. Then creates a new key and a new
certificate for each named role: DIR/ROLE.pem and DIR/ROLE.key, or DIR/ROLE.LABEL.pem and .key.

  ROLE    gateway, verifier, proposer, operator, client; the certificate names it as tandem://ROLE
  LABEL   distinguishes several certificates of one role, such as verifier.a and verifier.b
  HOST    DNS names and IP addresses of the host, as clients use them in their targets. By default
          those of the certificate that is replaced, otherwise localhost, 127.0.0.1 and ::1 for
          verifiers and proposers, and none for the others
  --days  validity of the certificates, 365 by default; at most that of the authority (10 years)

Without a role it renews all certificates in DIR, and creates those that are missing of all roles but client.
The authority never changes. Keep ca.key on this machine.

  ./tandem certs certs gateway verifier=v.example.org,10.0.0.2 proposer=p.example.org operator
  ./tandem certs certs                  # renews them
TEXT
}

# certs_san HOST...: the hosts as values of subjectAltName. openssl checks the addresses.
certs_san() {
    local host
    for host in "$@"; do
        if [[ $host =~ ^[0-9.]+$ || $host =~ ^[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*$ ]]; then
            printf ',IP:%s' "$host"
        elif [[ ${#host} -le 253 && $host =~ ^(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$ ]]; then
            printf ',DNS:%s' "$host"
        else
            die "a host is a DNS name or an IP address, not \"$host\""
        fi
    done
}

certs_list() { # HOST,HOST...
    local hosts
    IFS=, read -ra hosts <<<"$1"
    certs_san "${hosts[@]}"
}

# certs_openssl ARGUMENT...: openssl without its messages, unless it fails.
certs_openssl() {
    local said
    said=$(openssl "$@" 2>&1) || die "openssl $1 failed: ${said:0:500}"
}

certs_key() { certs_openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

# certs_put DIR NAME: puts DIR/.new.key and DIR/.new.pem into place. The private key is readable only by its owner.
certs_put() {
    chmod 600 "$1/.new.key" && chmod 644 "$1/.new.pem"
    mv -f "$1/.new.key" "$1/$2.key"
    mv -f "$1/.new.pem" "$1/$2.pem"
}

certs_authority() { # DIR
    local dir=$1
    [ -e "$dir/ca.pem" ] && [ -e "$dir/ca.key" ] && return
    [ ! -e "$dir/ca.pem" ] || die "$dir/ca.key is missing: run this where the authority was created"
    [ ! -e "$dir/ca.key" ] || die "$dir/ca.pem is missing, but $dir/ca.key exists"
    certs_key "$dir/.new.key"
    certs_openssl req -x509 -new -config /dev/null -key "$dir/.new.key" -days "$CERTS_CA_DAYS" -subj "/CN=Tandem authority" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -addext "subjectKeyIdentifier=hash" -out "$dir/.new.pem"
    certs_put "$dir" ca
    echo "$dir/ca.pem: new authority"
}

# The hosts of a certificate, separated by commas.
certs_hosts() { # FILE
    openssl x509 -in "$1" -noout -ext subjectAltName | sed -n '2,$p' | tr ',' '\n' |
        sed -n 's/^ *DNS://p; s/^ *IP Address://p' | paste -sd,
}

# certs_issue DIR DAYS NAME HOSTS: one certificate. All roles but proposers are clients of services; servers have hosts.
certs_issue() {
    local dir=$1 days=$2 name=$3 role=${3%%.*} san uses=''
    san=$(certs_list "$4") || exit
    [ "$role" = proposer ] || uses=clientAuth
    [ -z "$4" ] || uses=serverAuth${uses:+,$uses}
    certs_key "$dir/.new.key"
    printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" "extendedKeyUsage=$uses" \
        "subjectKeyIdentifier=hash" "authorityKeyIdentifier=keyid" "subjectAltName=URI:tandem://$role$san" >"$dir/.new.ext"
    certs_openssl req -new -config /dev/null -key "$dir/.new.key" -subj "/CN=$name" -out "$dir/.new.csr"
    certs_openssl x509 -req -in "$dir/.new.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -days "$days" \
        -set_serial "0x$(openssl rand -hex 16)" -extfile "$dir/.new.ext" -out "$dir/.new.pem"
    certs_put "$dir" "$name"
    echo "$dir/$name.pem: tandem://$role$san, until $(openssl x509 -in "$dir/$name.pem" -noout -enddate | cut -d= -f2)"
}

# Prints the names of certificates in DIR, and the roles that have none. A certificate for the role client must be asked for.
certs_all() { # DIR
    local role file
    for role in $CERTS_ROLES; do
        [ "$role" = client ] || [ -e "$1/$role.pem" ] || compgen -G "$1/$role.*.pem" >/dev/null || echo "$role"
        for file in "$1/$role.pem" "$1/$role".*.pem; do
            [ ! -e "$file" ] || basename "$file" .pem
        done
    done
}

command_certs() {
    local days=365 dir arg name hosts left names=()
    while [[ ${1:-} == -* ]]; do
        case $1 in
        --days)
            [[ ${2:-} =~ ^[1-9][0-9]{0,3}$ ]] || die "--days needs a number of days"
            days=$2
            shift 2
            ;;
        --help | -h) usage_certs && exit ;;
        *) die "unknown option $1, see ./tandem certs --help" ;;
        esac
    done
    [ -n "${1:-}" ] || { usage_certs >&2 && exit 2; }
    dir=$1
    [[ $dir == /* ]] || dir=$CALLED_FROM/$dir
    shift
    for arg in "$@"; do
        [[ $arg =~ ^(gateway|verifier|proposer|operator|client)(\.[A-Za-z0-9_-]{1,32})?(=[^=[:space:]]+)?$ ]] ||
            die "not a role: \"$arg\", see ./tandem certs --help"
        [[ $arg != *=* ]] || certs_list "${arg#*=}" >/dev/null # before anything is written
    done
    need_packages openssl
    umask 077
    mkdir -p "$dir"
    # shellcheck disable=SC2064 # expanded now: dir is local
    trap "rm -f $(printf %q "$dir")/.new.*" EXIT
    certs_authority "$dir"
    left=$((($(date -d "$(openssl x509 -in "$dir/ca.pem" -noout -enddate | cut -d= -f2)" +%s) - $(date +%s)) / 86400))
    [ "$left" -ge 1 ] || die "the authority $dir/ca.pem has ended; see \"Certificates that change\" in docs/operating.md"
    [ "$days" -le "$left" ] || days=$left
    [ $# -gt 0 ] || mapfile -t names < <(certs_all "$dir")
    for arg in "$@" "${names[@]}"; do
        name=${arg%%=*} hosts=''
        if [ "$name" != "$arg" ]; then
            hosts=${arg#*=}
        elif [ -e "$dir/$name.pem" ]; then
            hosts=$(certs_hosts "$dir/$name.pem")
        elif [[ $name == verifier* || $name == proposer* ]]; then
            hosts=localhost,127.0.0.1,::1
        fi
        certs_issue "$dir" "$days" "$name" "$hosts"
    done
}
