# usage goes to standard error
run 2>&1 >/dev/null | head -n 1
run 2>/dev/null
