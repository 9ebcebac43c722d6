#!/bin/sh
# Tests of `run chat`, through pipes and on pseudo-terminals (test_chat.py). Needs Python 3 with its standard library.
if ! command -v python3 >/dev/null 2>&1; then
    echo "chat: no python3 to play the terminal"
    echo "chat: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec python3 "$(dirname "$0")/test_chat.py" "$@"
