# lists that sha256sum printed, lines that are none, files that are missing or no checkpoints, names with line ends
printf 'abc' >abc
printf '' >'two
lines\'
echo 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  abc' >list
printf '%s\n' '\e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  two\nlines\\' >>list
run hash --check list
run hash --check - <list -q
echo "exit $?"
echo 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad *abc' | run hash --check -
{
    echo 'aa7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  abc'
    echo 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  none'
    echo '# ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  "a tensor"'
    echo '# a comment'
    echo 'no checksum'
} | run hash --check -
echo "exit $?"
echo 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ae  abc' | cat list - | run hash --check - --json -q
echo '# nothing' | run hash --check -
echo "exit $?"
run hash --check none
echo "exit $?"
run hash abc
echo "exit $?"
# a checkpoint whose name takes two lines, and back; as JSON the same sums
cp "$DEMO/model.safetensors" 'm
odd.safetensors'
run hash 'm
odd.safetensors' >list
head -n 1 list | cut -c 66-
run hash --check list | sed 's/^model.*/T/' | sort | uniq -c | sed 's/^ *//'
run hash "$DEMO" --json | tr ',' '\n' | sed -n 's/.*"sha256":"\([0-9a-f]*\)".*/\1/p' >sums
sed 's/^\\//; s/^# //; s/ .*//; $d' list | cmp - sums
run hash
echo "exit $?"
