run bench -p 16 -n 4 -r 1 -q | sed 's/[0-9][0-9.]*/N/g; s/, [a-z]*[a-z0-9N]*$/, K/'
run bench -p 16 -n 4 -d 8 -r 2 -q --json | sed 's/:[0-9.e-]*\([,}]\)/:N\1/g; s/"isa":"[a-z0-9]*"/"isa":I/; s/"threads":[0-9]*/"threads":N/'
