#!/bin/sh
# download.sh fetches a Qwen2.5 checkpoint from the Hugging Face hub, or from a mirror of it, with curl or wget.
#
# How a file comes here:
#   1. HEAD ORG/NAME/resolve/REVISION/FILE asks the hub. Its own answer, before any redirect to the storage, names the
#      commit (X-Repo-Commit), the size (X-Linked-Size) and the digest: X-Linked-Etag is the SHA-256 of a big file,
#      ETag the SHA-1 of a small one as a git blob. The storage has an ETag too, but that is a hash of something else.
#   2. GET brings the bytes into FILE.DIGEST.part, going on where an earlier run stopped. The link to the storage is
#      signed and runs out, so a new try begins at step 1.
#   3. Size and digest are compared. Only then does the file get its name.
# What it promises:
#   - a file under its final name is whole and is what the hub, or the table below, says it should be;
#   - all files are of one commit;
#   - no file grows much beyond the size that the hub announces, and nothing is written through a link;
#   - the token goes to the first address of HF_ENDPOINT alone, and stands in no command line and no message;
#   - ~/.curlrc, ~/.wgetrc and ~/.netrc change nothing; the usual proxy and certificate variables count.
set -u
LC_ALL=C
export LC_ALL

usage() {
    cat <<'END'
Usage: ./download.sh [--revision REV] [-q] [MODEL] [DIR]
       ./download.sh --cache [--revision REV] [-q] [MODEL]

Fetches MODEL (default Qwen/Qwen2.5-0.5B-Instruct, 1 GB) into the folder DIR (default: the current one). What is there
and right is left alone, a download that stopped goes on where it was, every file is checked before it gets its name.

  --revision REV     branch, tag or commit (default: the commit whose digests this script knows, else main)
  --cache            into the cache of the Hugging Face tools, where "run -m MODEL" and Python find it
  -q, --quiet        only errors
  -h, --help         this text
Environment:
  HF_ENDPOINT        the hub or a mirror, or several with spaces between, tried in turn (https://huggingface.co)
  HF_TOKEN           access token, for the first address only; else the file HF_TOKEN_PATH or HF_HOME/token
  HF_HUB_CACHE       the cache (HF_HOME/hub, which is ~/.cache/huggingface/hub)
  HF_HUB_OFFLINE     1: ask no one, take the model from the cache
  DOWNLOAD_TRIES     tries without a new byte before it gives up (6)
  DOWNLOAD_WAIT      seconds before the second try, doubled with each further one (1)
  DOWNLOAD_MAX_WAIT  the longest wait in seconds that a busy hub may ask for (300)
  DOWNLOAD_TIMEOUT   seconds without a byte after which a connection is ended (30)
  http_proxy, https_proxy, no_proxy, CURL_CA_BUNDLE, SSL_CERT_FILE: as usual
Exit code:
  0 all files are there and right, 1 the network or the disk failed, 2 wrong usage, 3 no such model, revision or file,
  4 access denied (a token or accepted terms are needed), 5 the bytes are not what they should be, 6 too little free
  space, 7 another copy works in DIR, 8 the hub asks for a longer wait, 130 Ctrl-C
Examples:
  ./download.sh
  ./download.sh Qwen/Qwen2.5-7B-Instruct models/7b
  HF_ENDPOINT=https://hf-mirror.com ./download.sh
END
}

# Known digests: name after "Qwen/Qwen2.5-", file, bytes, SHA-256 (64 digits) or git SHA-1 (40); "@" is the commit.
pins() {
    cat <<'END'
0.5B-Instruct @ - 7ae557604adf67be50417f59c2c2f167def9a775
0.5B-Instruct model.safetensors 988097824 fdf756fa7fcbe7404d5c60e26bff1a0c8b8aa1f72ced49e7dd0210fe288fb7fe
0.5B-Instruct config.json 659 18e18afcaccafade98daf13a54092927904649e1dd4eba8299ab717d5d94ff45
0.5B-Instruct generation_config.json 242 dfc11073787daf1b0f9c0f1499487ab5f4c93738
0.5B-Instruct tokenizer.json 7031645 c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539
0.5B-Instruct tokenizer_config.json 7305 5b5d4f65d0acd3b2d56a35b56d374a36cbc1c8fa5cf3b3febbbfabf22f359583
0.5B @ - 060db6499f32faf8b98477b0a26969ef7d8b9987
0.5B model.safetensors 988097824 88c142557820ccad55bb59756bfcfcf891de9cc6202816bd346445188a0ed342
0.5B config.json 681 479dcf0c5286339e41ad3992cd08ae88a467c4187587936248e2b7c96283484b
0.5B generation_config.json 138 8c970692323e3ea0e9b8b0a4dca79388d31226e41f83c9fd6014804280ebf6e8
0.5B tokenizer.json 7031645 c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539
0.5B tokenizer_config.json 7228 c91efca15ceff6e9ee9424db58a6f59cd41294e550a86cbd07e3c1fb500b34f9
1.5B-Instruct @ - 989aa7980e4cf806f80c7fef2b1adb7bc71aa306
1.5B-Instruct model.safetensors 3087467144 dd924a11b4c220f385b51ffa522daea7c9f3d850e31b162bb5661df483c6d3ee
1.5B @ - 8faed761d45a263340a0528343f099c05c9a4323
1.5B model.safetensors 3087467144 a961db72e75d52b18e6b0c9d379e51a26973b233385e0e127fdda7d648aec796
3B-Instruct @ - aa8e72537993ba99e69dfaafa59ed015b17504d1
3B-Instruct model-00001-of-00002.safetensors 3968658944 67347b23fb4165b652eb6611f5e1f2a06dfcddba8e909df1b2b0b1857bee06c2
3B-Instruct model-00002-of-00002.safetensors 2203268048 a40d941d0e7e0b966ad8b62bb6d6b7c88cce1299197b599d9d0a4ce59aabfc1d
7B-Instruct @ - a09a35458c702b33eeacc393d103063234e8bc28
7B-Instruct model-00001-of-00004.safetensors 3945441440 a1333e6293854747c481288ea83b348226af178dd565c49b6f9495ba1966aba7
7B-Instruct model-00002-of-00004.safetensors 3864726352 f5d25a2772cb825164a2a2c0fb6d51a87e282abf21e4dd75bc5cfb3cd0ea6185
7B-Instruct model-00003-of-00004.safetensors 3864726424 8efdec4c1bc12317ae1a38dc42b595ce777738a64deea3fcb8a0a91381bcdfd5
7B-Instruct model-00004-of-00004.safetensors 3556377672 1a72d403cdf0c1ec3cb7f289f17b394a01e64394c2e9b3c0f94dbce3faf879bd
END
}

# ---- small things -----------------------------------------------------------------------------------------------

AGAIN=75  # what a step returns when another try may help,
ABSENT=44 # and when the model has no such file
MOST_UNKNOWN=100000000000 # bytes of a file whose size the hub does not tell
MOST_HEADERS=1000000      # bytes of headers, and of anything else that is not a file of the model

say() { [ -n "$quiet" ] || printf '%s\n' "$*" >&2; }
die() { printf 'download.sh: %s\n' "$2" >&2; exit "$1"; } # CODE MESSAGE
has() { command -v "$1" >/dev/null 2>&1; }
is_on() { case $1 in 1 | [Oo][Nn] | [Yy][Ee][Ss] | [Tt][Rr][Uu][Ee]) ;; *) false ;; esac; }
is_number() { case $1 in '' | *[!0-9]* | 0?* | ???????????????????*) false ;; esac; }
is_digest() { case $1 in *[!0-9a-f]*) false ;; *) [ ${#1} -eq 64 ] || [ ${#1} -eq 40 ] ;; esac; }
megabytes() { printf '%s.%s MB' $(($1 / 1000000)) $(($1 / 100000 % 10)); }
size_of() { if [ -f "$1" ]; then echo $(($(wc -c <"$1"))); else echo 0; fi; }
site_of() { site=${1#*://} site=${1%%://*}://${site%%/*}; }  # URL: sets site: scheme, host and port
part_of() { part=$dir/${1##*/}.$(printf %.12s "$2").part; }  # NAME DIGEST: sets part; bound to one version of a file
place_of() { place=$dir/$1; [ -z "$to_cache" ] || place=$cache/snapshots/$commit/$1; } # NAME: sets place
at_home() { case $1 in "~" | "~"/*) printf %s "${HOME:-}${1#?}" ;; *) printf %s "$1" ;; esac; } # PATH: ~ replaced
plain() { tr -cd '\040-\176'; }                              # nothing that could drive a terminal

quoted() { # WORD, so that a shell reads it as one
    case $1 in *[!A-Za-z0-9._/-]*) printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")" ;; *) printf %s "$1" ;; esac
}

fresh() { # FILE: removes what is not an ordinary file, so that nothing is written through a link
    { [ -f "$1" ] && [ ! -L "$1" ]; } || rm -f "$1" 2>/dev/null || die 1 "$1 is not an ordinary file: remove it"
}

sha() { # BITS, data on stdin
    if has "sha${1}sum"; then "sha${1}sum"; elif has shasum; then shasum -a "$1"; else openssl dgst "-sha$1" -r; fi |
        sed 's/ .*//'
}

digest_of() { # FILE DIGEST: the digest of FILE, of the kind that DIGEST is
    if [ ${#2} -eq 64 ]; then sha 256 <"$1"; else { printf 'blob %s\0' "$(size_of "$1")" && cat "$1"; } | sha 1; fi
}

right() { # FILE SIZE DIGEST; "-" for what isn't known
    [ -s "$1" ] && { [ "$2" = - ] || [ "$(size_of "$1")" = "$2" ]; } &&
        { [ "$3" = - ] || [ "$(digest_of "$1" "$3")" = "$3" ]; }
}

what_is() { # FILE: names what is no part of a model, but is often found in its place
    case $(dd if="$1" bs=64 count=1 2>/dev/null | plain | tr '[:upper:]' '[:lower:]') in
    'version https://git-lfs'*) echo 'a Git LFS pointer instead of the file itself' ;;
    '<!doctype html'* | '<html'* | '<head'*) echo 'a web page' ;;
    '<?xml'* | '<error'*) echo 'an error message of the storage' ;;
    'entry not found'* | 'repository not found'* | 'invalid rev'*) echo 'an error message of the hub' ;;
    esac
}

pin() { # FILE: sets pin_size and pin_digest, if the commit asked for is the known one
    pin_size=- pin_digest=- pin_line=
    [ -z "$pinned" ] || pin_line=$(pins | sed -n "s|^${model#Qwen/Qwen2.5-} $1 ||p")
    [ -z "$pin_line" ] || pin_size=${pin_line% *} pin_digest=${pin_line#* }
    [ -n "$pin_line" ]
}

# ---- one request ------------------------------------------------------------------------------------------------

# A server that sends more than it announced must not fill the disk: no file grows beyond "most" bytes (MOST_HEADERS, if
# that is more: the limit counts for the log of the headers too). Shells count blocks of 512 bytes, bash outside its
# POSIX mode 1,024. With the signal ignored a tool ends as if the disk were full.
limit_files() {
    block=512
    case ${BASH_VERSION:+:$SHELLOPTS:} in '' | *:posix:*) ;; *) block=1024 ;; esac
    [ "$most" -ge $MOST_HEADERS ] || most=$MOST_HEADERS
    trap '' XFSZ
    ulimit -f $((most / block + 1)) 2>/dev/null || : # a lower limit may hold already
}

# Runs a command so that it ends when this script is ended; "watched" is the size that $part is to reach meanwhile.
run() {
    { limit_files && exec "$@" <&3 3<&- 2>"$tmp/errors" & } 3<&0
    child=$!
    echo "$host $$ $child" >>"$lock"
    if [ -n "$watched" ]; then progress & fi
    wait "$child"
    code=$? child=
    [ -z "$watched" ] || printf '\r\033[K' >&2
}

progress() { # once a second, as long as there is something to watch: bytes, share, time left, speed
    was=$(size_of "$part") seconds=0
    while sleep 1 && kill -0 $$ 2>/dev/null && kill -0 "$child" 2>/dev/null; do
        is=$(size_of "$part") seconds=$((seconds + 1)) rest=
        rate=$(((is - was) / seconds))
        [ "$watched" = - ] || rest=" of $(megabytes "$watched"), $((is * 100 / (watched + 1)))%"
        [ "$watched" = - ] || [ "$rate" -le 0 ] || rest="$rest, $(((watched - is) / rate)) s left"
        printf '\r%s%s, %s/s\033[K' "$(megabytes "$is")" "$rest" "$(megabytes "$rate")" >&2
    done
}

takes_token() { # URL: may it get the token?
    site_of "$1"
    [ -n "$token" ] && [ "$site" = "$first_site" ]
}

with_curl() { # URL OPTION...: the token comes through standard input
    address=$1 line=
    shift
    takes_token "$address" && line="header = \"Authorization: Bearer $token\""
    run curl -q -K - -g -sS --proto =http,https --connect-timeout "$timeout" -H 'Accept-Encoding: identity' \
        "$@" "$address" <<END
$line
END
}

with_wget() { # URL OPTION...: the token comes through a file that only its owner can read, kept for this request
    address=$1 config=--no-config authority=${CURL_CA_BUNDLE:-${SSL_CERT_FILE:-}}
    shift
    if takes_token "$address"; then
        printf 'header = Authorization: Bearer %s\n' "$token" >"$tmp/wgetrc"
        config=--config=$tmp/wgetrc
    fi
    run wget "$config" --no-hsts --no-netrc -nv -S --tries=1 --timeout="$timeout" -o "$tmp/raw" \
        --header='Accept-Encoding: identity' ${authority:+"--ca-certificate=$authority"} "$@" "$address" </dev/null
    rm -f "$tmp/wgetrc"
}

# Sets status and the headers that matter. Of several answers (a proxy's, those before a redirect) the last one counts.
read_headers() {
    tr -cd '\012\040-\176' <"$tmp/raw" | awk -v indent="$([ "$tool" = wget ] && echo '  ')" '
        substr($0, 1, length(indent)) != indent { next }
        { $0 = substr($0, length(indent) + 1) }
        /^HTTP\/[0-9.]+ [0-9][0-9][0-9]/ { split("", value); value["status"] = $2; next }
        { at = index($0, ":"); name = tolower(substr($0, 1, at - 1)) }
        at && !(name in value) { value[name] = substr($0, at + 1) }
        END {
            n = split("status x-repo-commit x-linked-size x-linked-etag etag location content-length content-type " \
                      "content-encoding content-range retry-after ratelimit x-error-code x-error-message", names, " ")
            for (i = 1; i <= n; i++) print value[names[i]]
        }' >"$tmp/head"
    {
        read -r status && read -r h_commit && read -r h_size && read -r h_digest && read -r h_etag &&
            read -r h_location && read -r h_length && read -r h_type && read -r h_encoding && read -r h_range &&
            read -r h_after && read -r h_limit && read -r h_code && read -r h_message
    } <"$tmp/head"
    h_digest=${h_digest#\"} h_digest=${h_digest%\"} h_etag=${h_etag#W/} h_etag=${h_etag#\"} h_etag=${h_etag%\"}
    h_encoding=${h_encoding#identity} h_range=${h_range#bytes }
}

tool_says() { # the last words of curl or wget
    { if [ "$tool" = wget ]; then grep '^[^ ]' "$tmp/raw"; fi; cat "$tmp/errors"; } |
        tail -n 1 | sed 's/^[a-z]*: //' | plain
}

head_of() { # URL: asks for the headers, or for one byte where HEAD is refused; status 000 means no answer
    most=$MOST_HEADERS
    for method in HEAD GET; do
        : >"$tmp/raw"
        case $tool$method in
        curlHEAD) with_curl "$1" -m "$timeout" -I -o "$tmp/raw" ;;
        curlGET) with_curl "$1" -m "$timeout" -r 0-0 -D "$tmp/raw" -o "$tmp/byte" ;;
        wgetHEAD) with_wget "$1" --max-redirect=0 --spider ;;
        wgetGET) with_wget "$1" --max-redirect=0 --header='Range: bytes=0-0' -O "$tmp/byte" ;;
        esac
        read_headers
        case $tool$code in curl0 | curl23 | wget[0368]) : "${status:=000}" ;; *) status=000 ;; esac
        case $status$h_code in 403 | 405* | 501*) ;; *) return ;; esac
    done
}

get_rest() { # URL: adds what is missing to $part. No redirect is followed with the token.
    : >"$tmp/raw"
    follow=-L jumps=5
    ! takes_token "$1" || follow=-f jumps=0
    case $tool in
    curl) with_curl "$1" -f $follow --speed-limit 1 --speed-time "$timeout" -C - -D "$tmp/raw" -o "$part" ;;
    wget) with_wget "$1" --max-redirect=$jumps -c -O "$part" ;;
    *) run $tool -q -c -O "$part" "$1" </dev/null ;;
    esac
    read_headers
    [ -s "$part" ] || rm -f "$part"
}

get_list() { # URL: what the hub's API answers, in $tmp/list
    most=$MOST_HEADERS
    : >"$tmp/raw"
    case $tool in
    curl) with_curl "$1" -m "$timeout" -D "$tmp/raw" -o "$tmp/list" ;;
    wget) with_wget "$1" --max-redirect=0 -O "$tmp/list" ;;
    esac
    read_headers
}

# ---- what can go wrong, and what then ---------------------------------------------------------------------------

transient() { why=$1; return $AGAIN; } # MESSAGE: may pass

refuse() { # CODE MESSAGE: this endpoint won't do. On to the next one, or the end.
    [ -n "$more_endpoints" ] || die "$1" "$2"
    endpoint=${more_endpoints%% *} more_endpoints=${more_endpoints#* }
    [ "$endpoint" != "$more_endpoints" ] || more_endpoints=
    try=1 pause=$first_pause now=yes bad=0 refused=
    say "$2; going on with $endpoint"
    return $AGAIN
}

no_answer() { # curl or wget got nowhere
    why="$site does not answer: $(tool_says)"
    case $tool$code in
    curl58 | curl60 | curl77 | wget5) refuse 1 "$why (CURL_CA_BUNDLE or SSL_CERT_FILE may name other certificates)" ;;
    curl[567] | wget4) [ -z "$more_endpoints" ] || refuse 1 "$why" ;;
    esac
    return $AGAIN
}

busy() { # waits as long as the hub asks for: Retry-After or the t of RateLimit, whichever is longer
    asked=${h_limit##*t=} asked=${asked%%[!0-9]*}
    is_number "$asked" || asked=0
    ! is_number "$h_after" || [ "$h_after" -le "$asked" ] || asked=$h_after
    transient "$site is busy (status $status)"
}

explain() { # NAME: what the hub means by a status that is no success
    says=${h_message:+: $h_message}
    case $status$h_code in
    404RevisionNotFound) refuse 3 "$model has no revision \"$revision\"" ;;
    404RepoNotFound) refuse 3 "$endpoint has no model $model, or your token gives no access to it" ;;
    404*) return $ABSENT ;;
    401*)
        if takes_token "$url"; then
            refused="$site refuses the access token (bad or expired)"
            say "$refused: going on without it"
            token='' now=yes
            return $AGAIN
        elif [ -n "$refused" ]; then
            refuse 4 "$refused, and without one it does not give $model: set another HF_TOKEN"
        elif [ "$h_code" = GatedRepo ]; then
            refuse 4 "$model is gated: accept its terms at $endpoint/$model, then set HF_TOKEN"
        else
            refuse 3 "$endpoint has no model $model, or it is private and needs HF_TOKEN"
        fi
        ;;
    403GatedRepo) refuse 4 "$model is gated: accept its terms at $endpoint/$model with the account of your HF_TOKEN" ;;
    403*) refuse 4 "$endpoint refuses $model/$1 (status 403$says)" ;;
    408* | 429* | 5*) busy ;;
    *) refuse 1 "$endpoint answers $1 with status $status$says" ;;
    esac
}

# Repeats a step until it returns something other than AGAIN. "now": a change, no wait; "progress": bytes came.
keep_trying() {
    try=1 pause=$first_pause
    while :; do
        now='' progress='' asked=0 why=
        "$@"
        result=$?
        [ $result -eq $AGAIN ] || return $result
        [ -z "$progress" ] || try=1 pause=$first_pause
        if [ -n "$now" ]; then
            continue
        elif [ "$asked" -gt "$max_pause" ]; then
            refuse 8 "$why and asks for a wait of $asked s: try again after that"
        elif [ "$try" -ge "$tries" ]; then
            refuse 1 "$why; gave up after $tries tries"
        else
            [ "$asked" -gt "$pause" ] || asked=$pause
            say "$why; again in $asked s"
            sleep "$asked" &
            child=$!
            wait "$child"
            child=
            try=$((try + 1)) pause=$((pause < 30 ? pause * 2 : 60))
        fi
    done
}

# ---- what the hub knows about a file ----------------------------------------------------------------------------

# Sets target, size and digest of a file, and the commit by the first answer. "-": SIZE or DIGEST isn't known yet.
ask() { # NAME SIZE DIGEST
    url=$endpoint/$model/resolve/${commit:-$revision_path}/$1
    target='' size='' digest='' seen='' hops=0
    if [ "$tool" != curl ] && [ "$tool" != wget ]; then # shows no headers
        [ "$3" != - ] || die 1 "${tool}can't ask the hub for the digest of $1, so it could not be checked: install curl"
        target=$url size=$2 digest=$3
        return 0
    fi
    while [ -z "$target" ]; do
        head_of "$url"
        : "${seen:=$h_commit}" "${size:=$h_size}" "${digest:=$h_digest}"
        case $status in
        000) no_answer; return ;;
        200 | 206) target=$url ;;
        301 | 302 | 303 | 307 | 308) redirect "$1" "$3" || return ;;
        *) explain "$1"; return ;;
        esac
    done
    [ "$status$method$h_encoding" != 200HEAD ] || : "${size:=$h_length}"
    check_facts "$@"
}

is_hub() { # SITE: of an address that we were given, or of the hub itself?
    case " $endpoints https://huggingface.co https://hf.co " in *" $1/"* | *" $1 "*) ;; *) false ;; esac
}

redirect() { # NAME DIGEST: follows within the hub, and stops at the way out to the storage
    site_of "$url"
    here=$site hops=$((hops + 1))
    case $h_location in
    http://* | https://*) next=$h_location ;;
    //*) next=${url%%://*}:$h_location ;;
    /*) next=$site$h_location ;;
    *) next=${url%/*}/$h_location ;;
    esac
    site_of "$next"
    if [ $hops -gt 5 ]; then
        refuse 5 "$endpoint redirects $1 in a circle"
    elif [ "${here%%:*},${site%%:*}" = https,http ]; then
        refuse 5 "$endpoint redirects $1 to an unencrypted address"
    elif [ "$here" = "$site" ]; then
        url=$next
    elif [ -n "$seen$digest" ] || [ "$2" != - ]; then
        target=$next
    elif is_hub "$site"; then
        url=$next
    else
        refuse 5 "$endpoint leads to $site without naming a commit: it is no model hub"
    fi
}

check_facts() { # NAME SIZE DIGEST: are they those of a hub, and of the commit and digest known so far?
    is_digest "$digest" || [ ${#h_etag} -ne 40 ] || digest=$h_etag # a longer ETag is a storage's own
    is_digest "$digest" || digest=-
    is_number "$size" || size=$2
    if [ "$status" = 200 ] && [ "${h_type%%html*}" = text/ ]; then
        refuse 5 "$endpoint answers $1 with a web page: it is no model hub"
    elif [ -n "$commit" ] && [ "${seen:-$commit}" != "$commit" ]; then
        refuse 5 "$endpoint has $1 of commit $seen instead of $commit"
    elif [ -z "$seen" ] && [ "$3" = - ]; then
        refuse 5 "$endpoint names no commit (X-Repo-Commit) for $1: it is no model hub"
    elif [ "$digest$3" = -- ]; then
        refuse 5 "$endpoint gives no digest for $1, so it could not be checked"
    elif [ "$3" != - ] && [ ${#digest} -eq ${#3} ] && [ "$digest" != "$3" ]; then
        refuse 5 "$endpoint has another $1: its digest is $digest, expected $3"
    else
        ! is_digest "$seen" || : "${commit:=$seen}"
        [ "$3" = - ] || digest=$3
    fi
}

# ---- one file ---------------------------------------------------------------------------------------------------

missing() { # NAME
    [ -z "$offline" ] || die 3 "offline (HF_HUB_OFFLINE), and the cache has no complete $model: no $1 in $cache"
    die 3 "$endpoint has no $1 in $model"
}

from_cache() { # NAME DIGEST: fills $part from the local cache of the Hugging Face tools, once a file
    cached=$cache/snapshots/${commit:--}/$1
    [ -s "$cached" ] || cached=$cache/blobs/$2
    [ -z "$cache_used$to_cache" ] && [ -s "$cached" ] && [ -r "$cached" ] || return
    cache_used=yes
    say "  from $cache"
    cp "$cached" "$part" || die 1 "$part could not be written"
}

attempt() { # NAME SIZE DIGEST TARGET: one try at a file; the first may have a link from plan()
    part_of "$1" "$3"
    fresh "$part"
    before=$(size_of "$part")
    [ "$2" = - ] || [ "$before" -le "$2" ] || { rm -f "$part"; before=0; }
    if [ "$before" != "$2" ] && ! from_cache "$1" "$3"; then
        [ -z "$offline" ] || missing "$1"
        target=$4
        [ "$target" != - ] && [ -z "$link_used" ] || ask "$1" "$2" "$3" || return
        link_used=yes
        [ -n "$quiet" ] || [ ! -t 2 ] || watched=$2
        most=$2
        [ "$2" != - ] || most=$MOST_UNKNOWN
        get_rest "$target"
        watched=
        site_of "$target"
        check_reply "$before" "$2" || return
    fi
    settle "$1" "$2" "$3"
}

check_reply() { # BEFORE SIZE: what came of get_rest?
    is=$(size_of "$part")
    if [ "$is" -gt "$most" ] && [ "$code${h_encoding:+packed}" != 0packed ]; then # a packed tiny file is longer
        rm -f "$part"
        if [ "$1" -eq 0 ]; then refuse 5 "$site sends more than the $most bytes that $endpoint announced"; return; fi
        now=yes
        transient "$site sends more than the rest of $2 bytes: from the start"
        return
    fi
    case $tool$code in curl23 | wget3) die 1 "$part could not be written (is the disk full?)" ;; esac
    if [ "$tool$code" = curl33 ] || ! follows "$1" "$2"; then
        rm -f "$part"
        now=yes
        transient "$site did not go on at byte $1: from the start"
        return
    elif [ -n "$h_encoding" ] && ! { [ "$code" -eq 0 ] && unpack; }; then # compressed, though nobody asked for it
        rm -f "$part" "$part.plain"
        transient "$site sends the file compressed ($h_encoding), and it could not be unpacked"
        return
    fi
    [ "$is" -le "$best" ] || best=$is progress=yes
    case $tool$code:$status in
    *:416) return 0 ;; # the part has all bytes, or too many: its digest tells
    curl22:429 | wget8:429 | curl22:5?? | wget8:5??) busy ;;
    curl22:* | wget[68]:*) transient "$site refuses the link that the hub gave (status $status)" ;;
    *[!0-9]0:*) [ "$2" = - ] || [ "$(size_of "$part")" -ge "$2" ] || transient "$site stopped at byte $is of $2" ;;
    *) transient "$site: $(tool_says)" ;;
    esac
}

follows() { # BEFORE SIZE: is the range that came the one asked for?
    [ "$1" -gt 0 ] || return 0
    case $status:$h_range in
    2??:"$1"-*/"$2" | 2??:"$1"-*/\* | 2??: | [!2]*:* | :*) ;;
    2??:"$1"-*) [ "$2" = - ] ;;
    *) false ;;
    esac
}

unpack() {
    rm -f "$part.plain"
    has gzip && (limit_files && exec gzip -dc <"$part" >"$part.plain" 2>/dev/null) && mv -f "$part.plain" "$part"
}

settle() { # NAME SIZE DIGEST: gives the part its name, if it is what it should be
    wrong=$(what_is "$part")
    if [ -z "$wrong" ] && right "$part" "$2" "$3"; then
        fetched=$((fetched + 1)) fetched_bytes=$((fetched_bytes + $(size_of "$part")))
        put_in_place "$1" "$3"
        rm -f "$dir/${1##*/}".????????????.part
        return 0
    fi
    : "${wrong:=$(size_of "$part") bytes with digest $(digest_of "$part" "$3"), expected $2 with $3}"
    rm -f "$part"
    bad=$((bad + 1)) now=yes
    [ -z "$offline" ] || die 5 "the cache's $1 is not right: $wrong"
    [ $bad -lt 2 ] || { refuse 5 "$1 from $endpoint is not right: $wrong"; return; }
    say "  not right ($wrong): fetching it again"
    return $AGAIN
}

own_folder() { # FOLDER: makes it; a link would lead the files elsewhere
    [ ! -L "$1" ] || die 1 "$1 is a link: remove it"
    [ -d "$1" ] || mkdir "$1" || die 1 "$1: cannot make this folder"
}

put_in_place() { # NAME DIGEST: the part gets its name; in the cache that is its digest, and the snapshot has a link
    if [ -z "$to_cache" ]; then
        place_of "$1"
        case $1 in */*) own_folder "${place%/*}" ;; esac
        keep_former "$place"
        mv -f "$part" "$place" || die 1 "$place could not be written"
        return
    fi
    blob=$2
    case $1 in # the table has the SHA-256 of some small files; the hub names them, as a commit, by a SHA-1
    *.safetensors) ;;
    *) ! pin "$1" || blob=$(digest_of "$part" "$commit") ;;
    esac
    mv -f "$part" "$dir/$blob" || die 1 "$dir/$blob could not be written"
    link_blob "$1" "$blob"
}

link_blob() { # NAME BLOB
    place_of "$1"
    own_folder "$cache/snapshots"
    own_folder "$cache/snapshots/$commit"
    case $1 in */*) own_folder "${place%/*}"; up=../../../ ;; *) up=../../ ;; esac
    rm -f "$place"
    ln -s "${up}blobs/$2" "$place" || die 1 "$place could not be written"
}

keep_former() { # FILE: what had the name before is moved aside, not lost
    [ -s "$1" ] && ! cmp -s "$1" "$part" || return 0
    former=$1.old
    while [ -e "$former" ]; do former=$former.old; done
    mv "$1" "$former" || die 1 "$former could not be written"
    say "  the $1 that was here has other contents and is now $former"
}

fetch() { # NAME SIZE DIGEST TARGET
    if [ "$2" = - ]; then say "$1"; else say "$1, $2 bytes"; fi
    best=0 bad=0 cache_used='' link_used=
    keep_trying attempt "$@" || missing "$1"
}

# ---- all files --------------------------------------------------------------------------------------------------

plan() { # NAME: lists the file, its size and its digest, if it isn't here yet; ABSENT if the model has none
    target=-
    if pin "$1"; then
        size=$pin_size digest=$pin_digest
    elif [ -n "$offline" ]; then
        look_in_cache "$1" || return
    else
        keep_trying ask "$1" - - || return
        site_of "$target"
        [ "$site" = "$first_site" ] || target=- # only a link within the hub lasts
    fi
    [ -n "$commit" ] || [ -z "$to_cache" ] || die 5 "$endpoint names no commit for $1, so the cache can't have it"
    place_of "$1"
    [ ! -d "$place" ] || die 1 "$place is a folder, so the file of that name has no place"
    if [ "$digest" != - ] && right "$place" "$size" "$digest"; then
        return 0
    elif [ -n "$to_cache" ] && [ "$digest" != - ] && right "$dir/$digest" "$size" "$digest"; then
        link_blob "$1" "$digest" # another snapshot has the same file
    else
        echo "$1 $size $digest $target" >>"$tmp/todo"
    fi
}

look_in_cache() { # NAME: where a snapshot holds links, their last part is the digest
    [ -s "$cache/snapshots/${commit:--}/$1" ] || return $ABSENT
    size=- digest=$(readlink "$cache/snapshots/$commit/$1")
    digest=${digest##*/}
    is_digest "$digest" || digest=-
}

need() { plan "$1" || missing "$1"; } # NAME

shard_names() { # INDEX: each value of weight_map once; what can't be read as a pair stays, and is no plain file name
    tr '\n\r\t' '   ' <"$1" | sed 's/.*"weight_map" *: *{\([^}]*\)}.*/\1/' | tr ',' '\n' |
        sed 's/^ *"[^"]*" *: *"\([^"]*\)" *$/\1/' | sort -u
}

plan_weights() {
    plan model.safetensors && return
    index=model.safetensors.index.json
    plan $index || missing model.safetensors
    if grep -q "^$index " "$tmp/todo"; then # only the index tells the names of the shards
        fetch "$index" "$size" "$digest" "$target"
        sed "/^$index /d" "$tmp/todo" >"$tmp/rest" && mv "$tmp/rest" "$tmp/todo"
    fi
    place_of "$index"
    index=$place
    shard_names "$index" >"$tmp/shards"
    while read -r shard <&4; do
        case $shard in [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) false ;; *.safetensors) ;; *) false ;; esac ||
            die 5 "$index names a shard that is no plain file name: $(printf %.80s "$shard" | plain)"
        need "$shard"
    done 4<"$tmp/shards"
}

check_space() { # before the first big byte
    needed=0
    while read -r name size digest target <&4; do
        part_of "$name" "$digest"
        [ "$size" = - ] || needed=$((needed + size - $(size_of "$part")))
    done 4<"$tmp/todo"
    free=$(df -Pk "$dir" 2>/dev/null | awk 'NR == 2 { print $4 }')
    ! is_number "$free" || [ $((free * 1024)) -ge $needed ] ||
        die 6 "$dir has too little space: $needed bytes ($(megabytes $needed)) are needed, $((free * 1024)) are free"
}

list_templates() { # the paths in a folder of the model, which only the hub's API tells, as JSON
    url=$endpoint/api/models/$model/tree/${commit:-$revision_path}/$1
    site_of "$url"
    get_list "$url"
    case $tool$code:$status in
    *[!0-9]0:200) tr ',{}' '\n\n\n' <"$tmp/list" | sed -n 's/^ *"path" *: *"\([^"]*\)" *$/\1/p' >"$tmp/paths" ;;
    *:404) ;;
    *:408 | *:429 | *:5??) busy ;;
    *:) no_answer ;;
    *) say "$site does not list $1 (status $status): going on without these files" ;;
    esac
}

plan_templates() { # chat_template.jinja; the templates with other names stand in a folder beside it
    plan chat_template.jinja || return 0
    folder=additional_chat_templates
    : >"$tmp/paths"
    if [ -n "$offline" ]; then
        (cd "$cache/snapshots/$commit" && printf '%s\n' $folder/*.jinja) >"$tmp/paths"
    else
        keep_trying list_templates $folder
    fi
    grep "^$folder/[A-Za-z0-9][A-Za-z0-9._-]*[.]jinja\$" "$tmp/paths" >"$tmp/names"
    while read -r name <&4; do plan "$name"; done 4<"$tmp/names"
}

fetch_all() {
    need config.json
    plan generation_config.json
    plan tokenizer.json || { need vocab.json && need merges.txt; }
    plan tokenizer_config.json
    [ -n "$pinned" ] || { plan added_tokens.json; plan_templates; } # the models of the table have neither
    plan_weights
    check_space
    while read -r name size digest target <&5; do
        fetch "$name" "$size" "$digest" "$target"
    done 5<"$tmp/todo"
}

# ---- the script itself ------------------------------------------------------------------------------------------

read_arguments() {
    model='' dir='' revision='' quiet='' to_cache='' only_names=
    while [ $# -gt 0 ]; do
        case $only_names$1 in
        -h | --help) usage; exit 0 ;;
        -q | --quiet) quiet=yes ;;
        --cache) to_cache=yes ;;
        --) only_names=/ ;;
        --revision=*) revision=${1#*=} ;;
        --revision) [ $# -ge 2 ] || die 2 "--revision needs a value"; revision=$2; shift ;;
        -?*) die 2 "unknown option $1 (--help lists them)" ;;
        *)
            [ -z "$dir" ] || die 2 "one MODEL and one DIR, not also \"$1\""
            if [ -z "$model" ]; then model=$1; else dir=$1; fi
            ;;
        esac
        shift
    done
    [ -z "$to_cache" ] || [ -z "$dir" ] || die 2 "--cache fills the cache, so no DIR is taken"
    : "${model:=Qwen/Qwen2.5-0.5B-Instruct}" "${dir:=.}"
    case $model in */*/* | [!A-Za-z0-9_]* | *[!A-Za-z0-9._/-]*) false ;; */[A-Za-z0-9_]*) ;; *) false ;; esac ||
        die 2 "MODEL is ORG/NAME, such as Qwen/Qwen2.5-1.5B-Instruct, not \"$model\""
    case $revision in
    [!A-Za-z0-9]* | *..* | *[!A-Za-z0-9._/-]*) die 2 "no revision can be called \"$revision\"" ;;
    esac
    case $dir in /* | ./* | .) ;; *) dir=./$dir ;; esac
}

read_environment() {
    tries=${DOWNLOAD_TRIES:-6} first_pause=${DOWNLOAD_WAIT:-1} max_pause=${DOWNLOAD_MAX_WAIT:-300}
    timeout=${DOWNLOAD_TIMEOUT:-30}
    for value in "$tries" "$first_pause" "$max_pause" "$timeout"; do
        is_number "$value" || die 2 "the DOWNLOAD_ variables hold whole numbers, not \"$value\""
    done
    endpoints=
    for endpoint in $(echo "${HF_ENDPOINT:-https://huggingface.co}" | tr ',' ' '); do
        case $endpoint in http://?* | https://?*) ;; *) die 2 "HF_ENDPOINT has to be a URL, not \"$endpoint\"" ;; esac
        while [ "$endpoint" != "${endpoint%/}" ]; do endpoint=${endpoint%/}; done
        endpoints="$endpoints${endpoints:+ }$endpoint"
    done
    endpoint=${endpoints%% *} more_endpoints=${endpoints#"$endpoint"} more_endpoints=${more_endpoints# }
    site_of "$endpoint"
    first_site=$site
    HF_HOME=$(at_home "${HF_HOME:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/huggingface}") offline=
    cache=$(at_home "${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-$HF_HOME/hub}}")/models--${model%/*}--${model#*/}
    ! is_on "${HF_HUB_OFFLINE:-}" && ! is_on "${TRANSFORMERS_OFFLINE:-}" || offline=yes
    [ -z "$to_cache" ] || [ -z "$offline" ] || die 2 "--cache fetches, which HF_HUB_OFFLINE forbids"
    into=$dir
    [ -z "$to_cache" ] || into=$cache dir=$cache/blobs
    token=${HF_TOKEN:-${HUGGING_FACE_HUB_TOKEN:-}} token_file=${HF_TOKEN_PATH:-$HF_HOME/token}
    [ -n "$token" ] || [ ! -r "$token_file" ] || token=$(cat "$token_file")
    ! is_on "${HF_HUB_DISABLE_IMPLICIT_TOKEN:-}" || token=
    token=$(printf %s "$token" | tr -d ' \r\n\t')
    case $token in *[!A-Za-z0-9._~+/=-]*) die 2 "the access token (HF_TOKEN, $token_file) is none" ;; esac
}

choose_commit() { # the known one, if there is one and nothing else is asked for
    pinned=yes commit='' reference=$cache/refs/${revision:-main}
    pin @
    if [ -n "$offline" ] && [ -f "$reference" ]; then
        commit=$(plain <"$reference")
    elif [ -z "$revision" ] && is_digest "$pin_digest"; then
        commit=$pin_digest
    elif is_digest "$revision"; then
        commit=$revision
    fi
    [ "$commit" = "$pin_digest" ] || pinned=
    branch=${revision:-main} # what refs/ of the cache is to name
    : "${revision:=${commit:-main}}"
    revision_path=$(echo "$revision" | sed 's,/,%2F,g')
}

choose_tools() {
    { has sha256sum && has sha1sum; } || has shasum || has openssl || die 1 "needs sha256sum and sha1sum, or openssl"
    if has curl; then
        tool=curl
    elif has wget && wget --version 2>/dev/null | grep -q '^GNU Wget 1'; then
        tool=wget
    elif has wget && wget --help 2>&1 | grep -q BusyBox; then
        tool='wget '
    elif has busybox && busybox wget --help 2>&1 | grep -q BusyBox; then
        tool='busybox wget '
    else
        die 1 "needs curl or wget"
    fi
}

# The lock is a file that only one can create; its last line has the host, the process and its curl or wget. That of a
# dead owner is taken over.
take_lock() {
    lock=$dir/.download.lock host=$(uname -n)
    if ! (set -C && echo "$host $$ -" >"$lock") 2>/dev/null; then
        [ ! -L "$lock" ] || die 1 "$lock is a link: remove it"
        [ -e "$lock" ] || die 1 "$dir: cannot write there"
        line=$(tail -n 1 "$lock" | plain)
        its_host=${line%% *} worker=${line##* } owner=${line#* } owner=${owner%% *}
        if [ "$its_host" != "$host" ] || [ -z "$owner" ] || kill -0 "$owner" 2>/dev/null || [ -d "/proc/$owner" ]; then
            die 7 "another copy (process ${owner:-?} on ${its_host:-?}) works in $dir; if that is not so, remove $lock"
        fi
        { tr '\000' ' ' <"/proc/$worker/cmdline" || ps -p "$worker" -o args=; } 2>/dev/null |
            grep -q '[.][0-9a-f]\{12\}[.]part' && kill "$worker" # it would go on writing
        { mv "$lock" "$lock.$$" && grep -qxF "$line" "$lock.$$" && rm "$lock.$$" &&
            (set -C && echo "$host $$ -" >"$lock"); } 2>/dev/null || die 7 "another copy has just started in $dir"
    fi
    locked=yes
}

clean_up() {
    [ -z "$child" ] || { kill "$child" && wait "$child"; } 2>/dev/null
    [ -z "$locked" ] || rm -f "$lock"
    [ -z "$made" ] || rmdir "$dir" ${to_cache:+"$cache"} 2>/dev/null
    [ -z "$tmp" ] || rm -rf "$tmp"
}

set_ref() { # refs/BRANCH of the cache names the snapshot; a commit needs none. Sets name: what "run -m" takes
    name=$cache/snapshots/$commit
    case $branch in "$commit" | */*) return 0 ;; esac
    own_folder "$cache/refs"
    rm -f "$cache/refs/.$branch.new"
    printf %s "$commit" >"$cache/refs/.$branch.new" && mv -f "$cache/refs/.$branch.new" "$cache/refs/$branch" ||
        die 1 "$cache/refs/$branch could not be written"
    [ "$branch" != main ] || name=$model
}

finish() {
    name=$dir
    [ -z "$to_cache" ] || set_ref
    if [ $fetched -gt 0 ]; then
        say "Fetched $fetched files, $(megabytes $fetched_bytes), into $into."
    else
        say "All files are there and right."
    fi
    program=$(dirname "$0")/run
    [ -x "$program" ] || say "Next: make"
    say "Next: $(quoted "$program") chat -m $(quoted "$name")"
}

main() {
    fetched=0 fetched_bytes=0 refused=
    tmp='' child='' locked='' made='' watched='' most=$MOST_HEADERS
    read_arguments "$@"
    read_environment
    choose_commit
    choose_tools
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    [ ! -L "$dir" ] || [ -z "$to_cache" ] || die 1 "$dir is a link: remove it"
    [ -d "$dir" ] || { mkdir -p "$dir" && made=yes; } || die 1 "$dir: cannot make this folder"
    tmp=$(mktemp -d) || die 1 "no place for temporary files (TMPDIR)"
    : >"$tmp/todo"
    take_lock
    say "$model, revision $revision, from $([ -n "$offline" ] && echo "$cache" || echo "$endpoint") into $into"
    fetch_all
    finish
}

main "$@"
