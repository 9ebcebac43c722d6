#!/bin/sh
# Tests of download.sh against a model hub of our own (test_download.py). Needs Python 3 with its standard library, and
# curl or wget.
if ! command -v python3 >/dev/null 2>&1; then
    echo "download: no python3 for the test server"
    echo "download: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec python3 "$(dirname "$0")/test_download.py" "$@"
