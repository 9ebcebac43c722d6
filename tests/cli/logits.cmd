run logits "Once upon a" -q --top 3
run logits "Once upon a" -q --top 2 --json | sed 's/\([0-9]\.[0-9][0-9]\)[0-9]*/\1/g'
run logits "Once upon a" -q --top 99999 | wc -l | tr -d ' '
run logits "Once upon a" -q --all --out l.f32
run logits "Once upon a" -q --all --out - | cmp - l.f32
wc -c <l.f32 | tr -d ' '
ln -s l.f32 link
run logits "Once" -q --all --out link
run logits "Once" -q --all --out link --force
ls -F | tr '\n' ' '
wc -c <l.f32 | tr -d ' '
run logits "Once" -q --all --out no/such/folder
