ln -s "$DEMO" demo
run explain "Once upon a" -m demo -q
run explain "Once upon a" -m demo -q --json | run json | grep -c '"step"'
