# Adds up lines "name: N passed, N failed, N skipped". Exit 1 if anything failed, or nothing passed.
/[0-9]+ passed, [0-9]+ failed/ {
    for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) passed += $(i - 1)
        if ($i ~ /^failed/) failed += $(i - 1)
        if ($i ~ /^skipped/) skipped += $(i - 1)
    }
}
END {
    printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""
    exit failed > 0 || passed == 0
}
