#!/bin/sh
# Four times the input takes about four times the time: test_growth.py. Needs Python 3 with its standard library.
if ! command -v python3 >/dev/null 2>&1; then
    echo "growth: no python3 to write the inputs"
    echo "growth: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec python3 "$(dirname "$0")/test_growth.py" "$@"
