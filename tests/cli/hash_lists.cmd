# lists as sha256sum, sha256sum --tag and older tools write them; more files than a process may open; no waiting
printf 'one' >one
printf 'two' >'t)w = o'
printf 'new' >'new
line'
h() { sha256sum "$1" | cut -c 1-64 | tr -d '\\'; }
{
    sha256sum one 't)w = o' "$(printf 'new\nline')"
    sha256sum --tag one 't)w = o' "$(printf 'new\nline')"
    printf '%s one\n' "$(sha256sum <one | cut -c 1-64)"
    printf '%s *one\n' "$(sha256sum <one | cut -c 1-64)"
} >list
run hash --check list
printf 'SHA256 (one) = %064d\nSHA256 (one) = abc\nSHA256 () = %064d\n' 0 0 >bad
run hash --check bad
mkfifo fifo
printf '%064d  fifo\n%064d  /dev/zero\n' 0 0 >wait
timeout 10 run hash --check wait
ulimit -n 100
for i in $(seq 300); do cp "$DEMO/config.json" c$i; done
sha256sum c* >many
run hash --check many -q && echo all
