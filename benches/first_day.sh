#!/usr/bin/env bash
# The first day on a GPU: what the machine is, `tests/gpu/tests/first_day.rs` with a process for each test, all kernels against the
# CPU, and speeds. It stops at nothing and leaves one log and one table.
#
#   benches/first_day.sh [OUT]     needs Rust, or BIN=FOLDER with the binaries `first_day`, `kernels` and `max` built elsewhere:
#   cargo build --release -p max-cli; cargo test --release -p gpu-tests --no-run
#
# A test that hangs (an `mbarrier` that nobody completes) is killed after a minute, and its context goes with the process. What to
# look at when one fails stands above each test.
set -u
out=${1:-target/first_day}
mkdir -p "$out"
log=$out/first_day.log table=$out/first_day.tsv
: >"$log"
printf 'test\tresult\tmilliseconds\n' >"$table"
export MAX_REQUIRE_GPU=1 CUDA_CACHE_DISABLE=1

if [ -z "${BIN:-}" ]; then
    BIN=$out/bin
    mkdir -p "$BIN"
    cargo build --release --package max-cli >>"$log" 2>&1 || exit 1
    cp target/release/max "$BIN/max"
    for name in first_day kernels; do
        built=$(cargo test --release --package gpu-tests --test $name --no-run --message-format json 2>>"$log" |
            sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
        cp "$built" "$BIN/$name" || exit 1
    done
fi

# Runs something in a process of its own, for a minute at most, and notes what became of it.
note() {
    local name=$1 start result
    shift
    start=$(date +%s%N)
    { echo "== $name: $*"; } >>"$log"
    if timeout -k 5 60 "$@" >>"$log" 2>&1; then result=passed; else result="FAILED ($?)"; fi
    printf '%s\t%s\t%s\n' "$name" "$result" $((($(date +%s%N) - start) / 1000000)) | tee -a "$table"
}

{ nvidia-smi -q | grep -E 'Product Name|Driver Version|CUDA Version|MIG Mode'; "$BIN/max" info; } >>"$log" 2>&1
for name in $("$BIN/first_day" --list 2>/dev/null | sed -n 's/^\([a-g][0-9][0-9][a-z_0-9]*\): test$/\1/p' | sort); do
    MAX_GPU_SYNC=1 note "$name" "$BIN/first_day" --exact "$name" --nocapture
done
for kernel in $("$BIN/max" ops 2>/dev/null | awk 'NR > 1 && NF > 3 { print $1 }'); do
    MAX_GPU_SYNC=1 note "check $kernel" "$BIN/max" check --device gpu "$kernel"
done
note "speed" env MAX_GPU_BENCH=1 "$BIN/kernels" --exact speed --nocapture
MAX_GPU_JIT_LOG=1 note "what the driver's compiler says" "$BIN/max" bench --device gpu matmul_bf16_4096
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck; do
        note "$tool" compute-sanitizer --tool $tool "$BIN/first_day" --exact f01_attention
    done
fi
echo "$log"
echo "$table"
! grep -q FAILED "$table"
