#!/usr/bin/env bash
# What to do with a GPU, in this order, each part within nine minutes:
#   benchmarks/gpu.sh tests|speed|compare|half|published|long [FOLDER]
# Results lie in FOLDER (gpu-results); what they need beside torch is installed from .whl/ where that is there,
# the images are the archive in .data/, else CIFAR-10 as it is fetched. Started again, a training goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
part=$1 out=$(realpath -m "${2:-gpu-results}") python=${PYTHON:-python3}
mkdir -p "$out"
if compgen -G ".whl/*.whl" > /dev/null && [[ ! -d $out/.site ]]; then
  "$python" -m pip install -q --no-index --no-deps --target "$out/.site" .whl/*.whl
fi
export PYTHONPATH=src:$out/.site${PYTHONPATH:+:$PYTHONPATH} WANDB_MODE=offline WANDB_SILENT=true
images=(data.source=cifar10)
for archive in .data/*.tar*; do [[ -f $archive ]] && images=(data.source=image_folder "data.root=$archive"); done

train() {  # RUNS WORD...: ends at a signal with its state kept
  timeout -s USR1 -k 30 "${SECONDS_EACH:-500}" "$python" run_experiment.py "${@:2}" "${images[@]}" device=cuda \
    "output_dir=$out/$1" resume=auto wandb.mode=offline checkpoint.every_minutes=2 checkpoint.every_epochs=null
}

compare() {  # BACKEND...: three seeds of the strong recipe, shortened, the order drawn within each seed
  for seed in 223 224 225; do
    for backend in $(shuf -e "$@"); do
      train comparison --config strong "backend=$backend" "seed=$seed" epochs=8 schedule.warmup_epochs=1 \
        execution=cuda_graph
    done
  done
}

case $part in
  tests) "$python" -m pytest -q -m gpu tests/gpu -n 8 -p no:cacheprovider | tee "$out/tests.log" ;;
  speed)
    # Compiling and capturing have a limit of their own, apart from the minutes.
    for executions in eager,cuda_graph=1.5 compile,compile_graph=5; do
      "$python" benchmarks/loops.py --backends none,native,apex_o1 --minutes "${executions#*=}" \
        --executions "${executions%=*}" --json "$out/speed-${executions%=*}.json" device=cuda | tee -a "$out/speed.log"
    done
    "$python" -m ampcompare bench --minutes 1.5 --json "$out/backends.json" device=cuda execution=cuda_graph \
      backend=none,native,native_bf16,apex_o2,fp16 | tee -a "$out/speed.log"
    "$python" -m ampcompare why explain backend=native device=cuda | tee "$out/explain.log"
    ;;
  compare) compare none native apex_o1 ;;
  half) compare apex_o2 fp16 native_bf16 ;;
  published) for backend in none native apex_o1; do train tootouch --config reference memory_format=contiguous "backend=$backend" epochs=2; done ;;
  long) train long backend=native execution=cuda_graph memory_format=channels_last epochs=100 eval.every=10 ;;
  *) echo "error: $part: expected tests, speed, compare, half, published or long" >&2; exit 2 ;;
esac
tar -C "$out" --exclude=checkpoints --exclude=.site -cJf "$out.tar.xz" .
echo "$out.tar.xz"
