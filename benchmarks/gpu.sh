#!/usr/bin/env bash
# Measure on one NVIDIA GPU what docs/results publishes, in parts of a few minutes:
#
#   benchmarks/gpu.sh FOLDER PART...
#
#   tests        run tests/gpu; meanwhile fill the compiler's cache for the parts that follow
#   ladder       bench five backends in eager, cuda_graph and compile_graph: ladder.json, ladder-compiled.json
#   explain      compare the dtypes, time and memory of a step of ResNet50: native and native_bf16 with none
#   transformer  bench ViT-S/16 of timm on 224x224 images: transformer.json
#   comparison   train tf32 and native with six seeds each (the sweep benchmarks/gpu_comparison.yaml)
#   pack         write FOLDER.tar.xz: records and results without checkpoints
#
# FOLDER/parts.txt holds the exit code and the duration of each part. The script exits with 1 if a part failed.
# If .whl/ exists, its wheels are installed into FOLDER. If .data/ has an archive, its images are used; otherwise
# CIFAR-10 is downloaded. The sweep continues if you start its part again.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "$1") python=${PYTHON:-python3} device=${DEVICE:-cuda}
shift
mkdir -p "$out"
if compgen -G ".whl/*.whl" > /dev/null && [[ ! -d $out/.site ]]; then
  "$python" -m pip install -q --no-index --no-deps --target "$out/.site" .whl/*.whl || exit
fi
export PYTHONPATH=$PWD/src:$out/.site${PYTHONPATH:+:$PYTHONPATH} WANDB_MODE=offline WANDB_SILENT=true
export TORCHINDUCTOR_CACHE_DIR=$out/.inductor
images=(data.source=cifar10)
for archive in "$PWD"/.data/*.tar*; do
  [[ -f $archive ]] && images=(data.source=image_folder "data.root=$archive")
done
ampcompare() { "$python" -m ampcompare "$@"; }

bench() {  # NAME ARGUMENT...
  ampcompare bench --json "$out/$1.json" "device=$device" "${@:2}" > "$out/$1.txt" 2> "$out/$1.err"
}

fill_compile_cache() {
  local backend
  for backend in none tf32 native native_bf16 apex_o1; do
    bench "cache-$backend" "backend=$backend" execution=compile_graph --minutes 0.1 &
  done
  for backend in tf32 native; do
    ampcompare run --config strong "backend=$backend" execution=compile_graph data.source=synthetic max_steps=12 \
      epochs=1 "device=$device" "output_dir=$out/.cache-runs" > "$out/cache-strong-$backend.txt" 2>&1 &
  done
  wait
}

run_part() {  # PART: returns the exit code of the part's last command that failed, or 0
  local backend failed=0
  case $1 in
    tests)
      fill_compile_cache &
      "$python" -m pytest -q -m gpu tests/gpu -n "${TEST_WORKERS:-6}" -p no:cacheprovider > "$out/tests.txt" 2>&1 \
        || failed=$?
      wait ;;  # A cache that could not be filled is no failed test.
    ladder)
      local backends=none,tf32,native,native_bf16,apex_o1
      bench ladder "backend=$backends" execution=eager,cuda_graph memory_format=contiguous,channels_last \
        --minutes "${LADDER_MINUTES:-1.5}" || failed=$?
      bench ladder-compiled "backend=$backends" execution=compile_graph memory_format=channels_last \
        --minutes "${COMPILED_MINUTES:-1}" || failed=$? ;;
    explain)
      for backend in native native_bf16; do
        ampcompare why explain --config reference "backend=$backend" "device=$device" \
          > "$out/explain-$backend.txt" 2>&1 || failed=$?
      done ;;
    transformer)
      bench transformer model.name=timm:vit_small_patch16_224 data.source=synthetic data.kwargs.size=224 \
        optimizer.name=adamw optimizer.lr=0.001 backend=none,tf32,native,native_bf16 execution=cuda_graph \
        --minutes "${TRANSFORMER_MINUTES:-0.8}" || failed=$? ;;
    comparison)
      ampcompare sweep benchmarks/gpu_comparison.yaml "${images[@]}" "device=$device" "output_dir=$out/comparison" \
        > "$out/comparison.txt" 2>&1 || failed=$? ;;
    pack) tar -C "$out" --exclude=checkpoints --exclude='.*' -cJf "$out.tar.xz" -- $(ls "$out") || failed=$? ;;
    *) echo "error: $1: expected tests, ladder, explain, transformer, comparison or pack" >&2; exit 2 ;;
  esac
  return "$failed"
}

exit_code=0
for part in "$@"; do
  began=$SECONDS code=0
  run_part "$part" || code=$? exit_code=1
  echo "$part: exit code $code, $((SECONDS - began)) s" | tee -a "$out/parts.txt"
done
exit "$exit_code"
