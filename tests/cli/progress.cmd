# perplexity shows on a terminal how far it is, also within the one window of a long text
[ -z "${EMULATOR-}" ] || { echo "under an emulator it takes minutes"; exit 77; }
script -qec true /dev/null </dev/null >/dev/null 2>&1 || { echo "no script"; exit 77; }
awk 'BEGIN { for (i = 0; i < 9000; i++) printf "%s%d", i ? "," : "", i % 2000 }' >ids
script -qec 'run perplexity --ids "$(cat ids)" --ctx 20000 -m "$DEMO"' /dev/null </dev/null 2>&1 | tr '\r' '\n' | grep -v 100% |
    awk '/scoring the text [1-9][0-9]*%/ { n++ } END { print (n ? "shown" : "none") }'
