# logits don't depend on the weight mode, threads, block, mapping or kernels
ids=$(seq -s, 3 60)
logits() { run logits --ids "$ids" --all --force --out "$@" -q; }
logits want -t 1 --block 1
i=0
for how in "-t 2" "-t 5 --block 7" "-w bf16" "-w bf16 -t 1 --block 3" "--no-mmap" "-w bf16 --no-mmap -t 2"; do
    logits got $how
    cmp want got || echo "differs with $how"
done
for isa in scalar avx2 avx512 avx512vnni avx512bf16 neon; do
    RUN_ISA=$isa run logits --ids 1 >/dev/null 2>&1 || continue
    RUN_ISA=$isa logits got -t 2
    cmp want got || echo "differs with RUN_ISA=$isa"
    i=$((i + 1))
done
[ $i -ge 1 ] || echo "no kernels at all"
wc -c <want | tr -d ' '
ls
