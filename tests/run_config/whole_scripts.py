# SPDX-License-Identifier: Apache-2.0
"""Whole launch scripts, changes of one thing in them, and spellings that mean the same.

Three sets, each written before it was run.
"""

# ruff: noqa: E501
from __future__ import annotations

from typing import Final

SLURM: Final = r"""#!/bin/bash
#SBATCH --job-name=llama
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --output=logs/%x-%j.out
set -euo pipefail

module purge
module load cuda/12.4 nccl/2.21
source /opt/conda/etc/profile.d/conda.sh
conda activate train

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export NCCL_DEBUG=WARN
export NCCL_IB_TIMEOUT=22
export OMP_NUM_THREADS=8

GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
MODEL_ARGS=(
  --num-layers 32
  --hidden-size 4096
  --num-attention-heads 32   # GQA below
  --group-query-attention
  --num-query-groups 8
)
OPTIM_ARGS=(
  --lr 3e-4 --min-lr 3e-5
  --lr-decay-style cosine
  --weight-decay 0.1
  --adam-beta2 0.95
  --clip-grad 1.0
)
DATA_PATH="0.7 /data/web 0.3 /data/code"
LAUNCH="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT"
srun --kill-on-bad-exit=1 bash -c "$LAUNCH pretrain_gpt.py ${MODEL_ARGS[*]} ${OPTIM_ARGS[*]} --data-path $DATA_PATH --seed 1234 --save ckpt/llama"
"""
DEEP: Final = r"""#!/usr/bin/env bash
usage() { echo "usage: $0 [-s stage] [-b batch] [-c]"; exit 2; }
STAGE=2
BATCH=16
COMPILE=
while getopts ":s:b:ch" opt; do
  case $opt in
    s) STAGE=$OPTARG ;;
    b) BATCH=$OPTARG ;;
    c) COMPILE=--compile ;;
    h|*) usage ;;
  esac
done
shift $((OPTIND - 1))

cat > ds_config.json <<EOF
{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8,
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 3, "overlap_comm": true},
  "bf16": {"enabled": true}
}
EOF

log() { echo "[$(date +%T)] $*" | tee -a run.log; }
log "starting"
trap 'log "failed at line $LINENO"; exit 1' ERR
deepspeed --num_gpus 8 --master_port 29501 finetune.py \
  --deepspeed ds_config.json \
  --model_name_or_path meta-llama/Llama-3.1-8B \
  --per_device_train_batch_size $BATCH \
  --learning_rate 2e-5 \
  --warmup_ratio 0.03 \
  --lr_scheduler_type cosine \
  --num_train_epochs 3 $COMPILE "$@" 2>&1 | tee -a run.log
"""
K8S: Final = r"""#!/bin/sh
set -eu
: "${WORLD_SIZE:?need WORLD_SIZE}"
: "${RANK:=0}"
export TOKENIZERS_PARALLELISM=false
export HF_HOME=/cache/hf
ulimit -n 65536
if [ -f /etc/ib.conf ]; then
  export NCCL_IB_HCA=mlx5_0,mlx5_1
else
  export NCCL_IB_DISABLE=1
fi
RETRIES=3
until ping -c 1 "$MASTER_ADDR" > /dev/null 2>&1; do
  RETRIES=$((RETRIES - 1))
  [ "$RETRIES" -gt 0 ] || exit 7
  sleep 5
done
pip install --no-deps -q "flash-attn==2.6.3"
cp -r /mnt/dataset-v2/. /tmp/dataset
exec torchrun \
    --nnodes "$WORLD_SIZE" --node_rank "$RANK" --nproc_per_node 8 \
    --master_addr "$MASTER_ADDR" --master_port 23456 \
    -m trainer.main --config /etc/trainer/config.yaml --dataset /tmp/dataset --max-steps 20000 --precision bf16
"""
SWEEP: Final = r"""#!/bin/bash
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
[ -f .env ] && set -a && source .env && set +a
SEEDS=(0 1 2)
declare -A LR=([small]=1e-3 [base]=3e-4)
GPU=0
for size in small base; do
  for seed in "${SEEDS[@]}"; do
    name="${size}_s${seed}"
    CUDA_VISIBLE_DEVICES=$GPU nohup python -u src/train.py \
      model=$size optim.lr=${LR[$size]} seed=$seed \
      data.workers=4 trainer.epochs=50 +trainer.ema=0.999 \
      hydra.run.dir=outputs/$name > logs/$name.log 2>&1 &
    GPU=$(( (GPU + 1) % 4 ))
    sleep 2
  done
  wait
done
python scripts/collect.py --metric val_acc --out outputs/summary.csv
"""
DOCKER: Final = r"""#!/bin/bash
IMAGE=nvcr.io/nvidia/pytorch:24.07-py3
NAME=${USER}_train
docker rm -f "$NAME" 2>/dev/null || true
docker run --rm --name "$NAME" --gpus all --ipc=host --shm-size=64g \
  --ulimit memlock=-1 \
  -v "$PWD":/workspace -v /data:/data:ro \
  -e WANDB_MODE=offline -e TORCH_CUDNN_V8_API_ENABLED=1 \
  -w /workspace "$IMAGE" \
  bash -c "pip install -r requirements.txt && accelerate launch --config_file fsdp.yaml --num_processes 8 train.py --mixed_precision bf16 --gradient_accumulation_steps 4 --learning_rate 1e-5"
"""
ASCEND: Final = r"""#!/bin/bash
source /usr/local/Ascend/ascend-toolkit/set_env.sh
export HCCL_DETERMINISTIC=false
export ASCEND_LAUNCH_BLOCKING=0
export PYTHONPATH=$PWD/MindSpeed:$PYTHONPATH
TP=4
PP=2
NPUS=8
MBS=1
GBS=64
if [ $((NPUS % (TP * PP))) -ne 0 ]; then
  echo "bad layout"; exit 1
fi
DP=$((NPUS / TP / PP))
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --micro-batch-size ${MBS} \
    --global-batch-size ${GBS} \
    --seq-length 4096 \
    --train-iters 5000 \
    --recompute-granularity full \
    --recompute-num-layers 1 \
    --use-flash-attn
"
run_stage() {
  local iters=$1 ckpt=$2
  shift 2
  msrun --worker_num $NPUS --local_worker_num $NPUS --master_port 8118 --log_dir msrun_log --join True \
    pretrain.py $GPT_ARGS --train-iters $iters --load $ckpt "$@" || return 3
}
run_stage 1000 none --lr 1e-4 && run_stage 4000 ckpt/1000 --lr 5e-5
"""
LONG: Final = r"""#!/usr/bin/env bash
set -Eeuo pipefail
trap cleanup SIGINT SIGTERM EXIT

cleanup() {
  local code=$?
  trap - SIGINT SIGTERM EXIT
  [[ -d ${TMP:-} ]] && rm -rf "$TMP"
  exit $code
}
die() { echo >&2 "$1"; exit "${2:-1}"; }

lr=1e-3 epochs=90 arch=resnet50 resume="" amp=0
data=/data/imagenet
extra=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --lr) lr="$2"; shift 2 ;;
    --epochs) epochs="$2"; shift 2 ;;
    --arch=*) arch="${1#*=}"; shift ;;
    --amp) amp=1; shift ;;
    --resume) resume="$2"; shift 2 ;;
    --) shift; extra+=("$@"); break ;;
    -*) die "unknown option $1" 64 ;;
    *) data="$1"; shift ;;
  esac
done
TMP=$(mktemp -d)
args=(--arch "$arch" --lr "$lr" --epochs "$epochs" --wd 1e-4 --momentum 0.9)
(( amp )) && args+=(--amp --amp-dtype bfloat16)
[[ -n $resume ]] && args+=(--resume "$resume")
python -m torch.distributed.run --standalone --nproc_per_node=4 main.py "${args[@]}" ${extra[@]+"${extra[@]}"} "$data"
"""
PBS: Final = r"""#!/bin/bash
#PBS -N bert
#PBS -l select=2:ncpus=64:ngpus=4
#PBS -l walltime=24:00:00
#PBS -q gpu
cd $PBS_O_WORKDIR
. ./site.sh
ulimit -s unlimited
NODES=$(sort -u $PBS_NODEFILE | wc -l)
case $(hostname) in
  gpu*) export NCCL_SOCKET_IFNAME=ib0 ;;
  *)    export NCCL_SOCKET_IFNAME=eth0 ;;
esac
export HOROVOD_FUSION_THRESHOLD=67108864 \
       HOROVOD_CYCLE_TIME=3.5
mpiexec -n $((NODES * 4)) --ppn 4 --cpu-bind depth -d 16 \
  python3 run_bert.py --bert-config base.json --max-seq-len 512 \
    --train-batch-size $(( 256 / NODES )) --lr 4e-4 --warmup-frac 0.01 \
    --dropout 0.1 --fp16 --seed ${PBS_ARRAY_INDEX:-7} > out.$PBS_JOBID 2>&1
"""
RETRY: Final = r"""#!/bin/bash
MAX=5
n=0
ckpt_dir=/ckpt/$RUN
latest() { ls -1t "$ckpt_dir"/*.pt 2>/dev/null | head -1; }
until [ $n -ge $MAX ]; do
  last=$(latest)
  resume=()
  if [ -n "$last" ]; then
    resume=(--resume "$last" --skip-warmup)
  fi
  if python train.py --config conf.yaml "${resume[@]}" --grad-accum 8 --ema-decay 0.9999; then
    break
  fi
  code=$?
  if [ $code -eq 137 ]; then
    export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  elif [ $code -eq 3 ]; then
    rm -f "$last"
  fi
  n=$((n + 1))
  sleep $((n * 30))
done
[ $n -lt $MAX ] || { echo "gave up"; exit 70; }
python export.py --ckpt "$(latest)" --opset 17 --dtype fp16
"""
FUNC: Final = r"""#!/bin/bash
declare -r ROOT=/work
PRESET=${1:-small}
common=( --tokenizer $ROOT/tok.model --vocab-size 32000 )
preset_small() { layers=12 dim=768 heads=12; }
preset_large() { layers=24 dim=1024 heads=16; }
build_args() {
  local -n out=$1
  local rate=$2
  out=( "${common[@]}" --layers $layers --dim $dim --heads $heads --rate "$rate" )
  if [[ $PRESET == large ]]; then
    out+=( --checkpoint-activations )
  fi
}
preset_small
if [[ $PRESET == large ]]; then preset_large; fi
build_args ARGS 2e-4
for phase in warm main cool; do
  case $phase in
    warm) steps=500 ; sched=linear ;;
    main) steps=9000 ; sched=constant ;;
    cool) steps=500 ; sched=cosine ;;
  esac
  accelerate launch --num_processes 4 --dynamo_backend inductor lm.py "${ARGS[@]}" --phase $phase --steps $steps --sched $sched
done
"""
TMUX: Final = r"""#!/bin/bash
session=exp1
source venv/bin/activate
export $(grep -v '^#' train.env | xargs)
tmux new-session -d -s $session "python -W ignore serve_data.py --port 9000 --shards 16"
sleep 10
mapfile -t SEEDS < seeds.txt
for i in "${!SEEDS[@]}"; do
  CUDA_VISIBLE_DEVICES=$((i % 8)) python agent.py --env CartPole-v1 --seed "${SEEDS[$i]}" --gamma 0.99 --horizon 128 &
  pids[$i]=$!
done
fail=0
for p in "${pids[@]}"; do wait $p || fail=1; done
[ $fail -eq 0 ] && python eval.py --episodes 100
tmux kill-session -t $session
"""
ENROOT: Final = r"""#!/bin/bash
#SBATCH -N 8 -n 64 --gres=gpu:8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --array=0-3
readarray -t LRS <<'EOF'
1e-4
3e-4
6e-4
1e-3
EOF
LR=${LRS[$SLURM_ARRAY_TASK_ID]}
export UCX_TLS=rc,cuda_copy NVTE_FUSED_ATTN=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
MOUNTS="/lustre:/lustre,$PWD:/code"
read -r -d '' CMD <<EOC || true
cd /code && \
python -u pretrain.py --lr $LR --tensor-parallel 4 --sequence-parallel \
  --fp8-format hybrid --fp8-amax-history-len 1024 --rope-base 500000
EOC
srun --mpi=pmix --container-image=nvcr.io/nemo:24.07 --container-mounts=$MOUNTS bash -c "$CMD"
"""
PYDOC: Final = r"""#!/bin/bash
set -o errexit
export PYTHONHASHSEED=0
pushd /repo >/dev/null
git fetch -q origin && git checkout -q 3f2a91c
popd >/dev/null
python3 - "$@" <<'PY'
import yaml
cfg = yaml.safe_load(open("base.yaml"))
cfg["optim"]["betas"] = [0.9, 0.98]
yaml.safe_dump(cfg, open("run.yaml", "w"))
PY
sed -e 's/^batch:.*/batch: 48/' -e '/^debug/d' run.yaml > final.yaml
timeout --signal=INT 71h torchrun --nproc-per-node=gpu -m fairseq_cli.hydra_train --config-dir . --config-name final \
  task.data=/data/bin optimization.max_update=100000 +optimization.update_freq='[4]' distributed_training.ddp_backend=legacy_ddp \
  || { rc=$?; [ $rc -eq 124 ] && sbatch --dependency=singleton "$0"; exit $rc; }
"""
COMPOSE: Final = r"""#!/bin/sh
. ./defaults.sh
: "${BATCH:=32}" "${WORKERS:=8}"
if [ "${DEBUG:-0}" = 1 ]; then
  set -x
  BATCH=2
fi
docker compose -f train.yml run --rm -e SEED=42 -e BATCH trainer \
  python train.py --batch "$BATCH" --workers "$WORKERS" --optim lamb --label-smoothing 0.1 &&
  docker compose -f train.yml run --rm trainer python evaluate.py --split test --beam 4
status=$?
find logs -name '*.tmp' -delete
exit $status
"""
A_3: Final = r"""#!/bin/bash -l
#SBATCH --partition=a100
#SBATCH --cpus-per-task=12
eval "$(conda shell.bash hook)"
conda activate /envs/vit
set -a
. config/run.env
set +a
export WORLD=$((SLURM_NNODES * 8))
head_node=$(hostname -s)
case ${STAGE:=pretrain} in
  pretrain) EPOCHS=300; MASK=0.75 ;;
  finetune) EPOCHS=100; MASK=0 ;;
  *) echo "bad stage $STAGE" >&2; exit 22 ;;
esac
if (( EPOCHS > 200 )); then WARMUP=40; else WARMUP=5; fi
BLR=1.5e-4
ACC=2
COMMON="--model mae_vit_large --norm_pix_loss --batch_size 64 --accum_iter $ACC"
srun --label --cpu-bind=none bash -c '
  export LOCAL_RANK=$SLURM_LOCALID
  python main_pretrain.py '"$COMMON"' --epochs '$EPOCHS' --mask_ratio '$MASK' --blr '$BLR' --warmup_epochs '$WARMUP' --dist_url tcp://'$head_node':29400
'
"""
B_3: Final = r"""#!/usr/bin/env bash
set -u
readonly HERE=$(dirname "$(readlink -f "$0")")
source "$HERE/lib.sh"
require python
declare -a GPUS=(0 1 2 3)
IFS=',' CUDA_VISIBLE_DEVICES="${GPUS[*]}"
export CUDA_VISIBLE_DEVICES
unset IFS
export XLA_FLAGS="--xla_gpu_deterministic_ops=true"
opts=()
opts+=(--optimizer.name=lion)
opts+=(--optimizer.lr=3e-5 --optimizer.wd=1.0)
[[ ${FAST:-} ]] && opts+=(--precision=fp8) || opts+=(--precision=bf16)
for fold in $(seq 0 4); do
  [[ $fold -eq 3 ]] && continue
  python -m bench.cv --fold "$fold" --folds 5 "${opts[@]}" |& tee "fold_$fold.log"
  status=${PIPESTATUS[0]}
  (( status == 0 )) || break
done
paste -sd, fold_*.log > all.csv
python -c "import bench.merge as m; m.main('all.csv', ddof=1)"
"""
C_3: Final = r"""#!/bin/sh
# entrypoint
umask 027
export HOME=/home/app PATH="/opt/venv/bin:$PATH"
if [ "$#" -gt 0 ] && [ "$1" = "bash" ]; then exec "$@"; fi
if [ -z "${CKPT:-}" ]; then
  CKPT=$(find /ckpt -name '*.safetensors' | sort | tail -n 1)
fi
python /app/fetch.py --bucket s3://data/v7 --out /data || exit 9
set -- --data /data --init "$CKPT" --tokens 2e9 "$@"
if [ "${NPROC:-1}" -gt 1 ]; then
  set -- --fsdp full_shard --backward-prefetch pre "$@"
  exec torchrun --nproc-per-node="$NPROC" --max-restarts=3 /app/train.py "$@"
fi
exec python /app/train.py "$@"
"""
D_3: Final = r"""#!/bin/bash
HOSTS="node01 node02 node03"
PORT=41000
rank=0
nnodes=$(echo $HOSTS | wc -w)
for host in $HOSTS; do
  ssh -o StrictHostKeyChecking=no $host "cd /nfs/job && source env/bin/activate && NCCL_ALGO=Tree torchrun --nnodes 3 --node_rank $rank --master_addr node01 --master_port $PORT --nproc_per_node 8 run.py --cfg cfgs/moe.yaml --experts 64 --topk 2 --capacity 1.25" > log.$rank 2>&1 &
  rank=$((rank + 1))
done
wait
rsync -a node01:/nfs/job/out/ ./out/
python tools/average.py --inputs out/*.pt --last 5 --output out/avg.pt
"""
E_3: Final = r"""#!/bin/bash
set -e
function prepare {
  python tools/tokenize.py --input "$1" --workers 16 --append-eod
}
function train {
  local cfg=$1 seed=${2:-1}
  shift; shift || true
  cat > /tmp/override.yaml <<YAML
trainer:
  seed: $seed
  max_epochs: 12
optim:
  name: adamw
  lr: 0.0005
YAML
  lightning run model --accelerator gpu --devices 4 fit.py --config $cfg --override /tmp/override.yaml "$@"
}
prepare raw/train.jsonl
train cfg/base.yaml 11 --ckpt none
train cfg/base.yaml 12 --ckpt none
mv runs/latest runs/base
until [[ -f runs/base/done ]]; do sleep 30; done
xargs -n1 -P2 python score.py --batch 8 --metric bleu < lists/models.txt
"""
FILES: Final = {
    ".env": "WANDB_PROJECT=x\nDATA_SEED=3\n",
    "fsdp.yaml": "fsdp: 1\n",
    "src/train.py": "import torch\n",
    "site.sh": "export OMP_NUM_THREADS=16\nMODE=a\n",
    "defaults.sh": "WORKERS=4\n",
    "seeds.txt": "1\n2\n3\n",
    "train.env": "A=1\nLR_SCALE=2\n",
    "conf.yaml": "lr: 1\n",
    "config/run.env": "DATA=/d\nDROP_PATH=0.1\n",
    "lib.sh": 'require() { command -v "$1" >/dev/null || exit 127; }\n',
}
# Script, what is changed in it, and the place that is to be named.
CHANGES: Final = (
    (SLURM, '--gpus-per-node=8', '--gpus-per-node=4', 'gpus-per-node'),
    (SLURM, 'set -euo pipefail', 'set -uo pipefail', 'set'),
    (SLURM, 'cuda/12.4', 'cuda/12.1', 'module'),
    (SLURM, 'conda activate train', 'conda activate train2', 'conda'),
    (SLURM, 'head -n 1', 'tail -n 1', 'MASTER_ADDR'),
    (SLURM, 'NCCL_IB_TIMEOUT=22', 'NCCL_IB_TIMEOUT=18', 'NCCL_IB_TIMEOUT'),
    (SLURM, 'GPUS_PER_NODE=8', 'GPUS_PER_NODE=4', 'nproc_per_node'),
    (SLURM, '--num-query-groups 8', '--num-query-groups 4', 'num-query-groups'),
    (SLURM, '--adam-beta2 0.95', '--adam-beta2 0.999', 'adam-beta2'),
    (SLURM, '0.7 /data/web 0.3', '0.5 /data/web 0.5', 'data-path'),
    (SLURM, '--kill-on-bad-exit=1', '--kill-on-bad-exit=0', 'kill-on'),
    (SLURM, 'c10d', 'static', 'rdzv_backend'),
    (DEEP, 'STAGE=2\n', 'STAGE=3\n', 'STAGE'),
    (DEEP, 'BATCH=16', 'BATCH=8', 'batch'),
    (DEEP, 'c) COMPILE=--compile', 'c) COMPILE=--torch_compile', 'compile'),
    (DEEP, '"gradient_accumulation_steps": 8', '"gradient_accumulation_steps": 4', 'gradient_accumulation'),
    (DEEP, '"overlap_comm": true', '"overlap_comm": false', 'overlap'),
    (DEEP, "exit 1' ERR", "exit 0' ERR", 'exit'),
    (DEEP, 'ERR\n', 'EXIT\n', 'trap'),
    (DEEP, '--warmup_ratio 0.03', '--warmup_ratio 0.1', 'warmup'),
    (DEEP, ':s:b:ch', ':s:b:h', 'loop|getopts'),
    (DEEP, ' $COMPILE "$@"', ' "$@"', 'compile'),
    (DEEP, 'OPTIND - 1', 'OPTIND', 'shift'),
    (K8S, 'RANK:=0', 'RANK:=1', 'node_rank|rank'),
    (K8S, 'PARALLELISM=false', 'PARALLELISM=true', 'TOKENIZERS'),
    (K8S, '-n 65536', '-n 1024', 'ulimit'),
    (K8S, 'mlx5_0,mlx5_1', 'mlx5_0', 'NCCL_IB_HCA'),
    (K8S, 'NCCL_IB_DISABLE=1', 'NCCL_IB_DISABLE=0', 'NCCL_IB_DISABLE'),
    (K8S, 'exit 7', 'exit 0', 'exit'),
    (K8S, 'until ping', 'while ping', 'until|loop'),
    (K8S, '2.6.3', '2.5.8', 'pip'),
    (K8S, 'dataset-v2', 'dataset-v3', 'cp'),
    (K8S, 'exec torchrun', 'torchrun', 'training'),
    (K8S, '-m trainer.main', '-m trainer.debug', 'script|training'),
    (SWEEP, '(0 1 2)', '(0 1 3)', 'seed'),
    (SWEEP, '[base]=3e-4', '[base]=1e-4', 'lr'),
    (SWEEP, '% 4', '% 2', 'CUDA_VISIBLE'),
    (SWEEP, 'ema=0.999', 'ema=0.9999', 'ema'),
    (SWEEP, '  wait\ndone', 'done\nwait', 'wait'),
    (SWEEP, 'set -a && ', '', 'set|env|list'),
    (SWEEP, '2>&1 &\n', '2>&1\n', 'training|background|redirect'),
    (SWEEP, 'val_acc', 'val_loss', 'metric'),
    (SWEEP, '[ -f .env ]', '[ -f .env.local ]', 'condition'),
    (DOCKER, '24.07-py3', '24.05-py3', 'docker'),
    (DOCKER, '--shm-size=64g', '--shm-size=8g', 'shm'),
    (DOCKER, 'API_ENABLED=1', 'API_ENABLED=0', 'API_ENABLED|docker'),
    (DOCKER, '/data:/data:ro', '/data2:/data:ro', 'docker'),
    (DOCKER, 'requirements.txt', 'requirements-dev.txt', 'pip'),
    (DOCKER, '--num_processes 8', '--num_processes 4', 'num_processes'),
    (DOCKER, '--ulimit memlock=-1', '--ulimit memlock=64', 'memlock|ulimit'),
    (ASCEND, 'HCCL_DETERMINISTIC=false', 'HCCL_DETERMINISTIC=true', 'HCCL'),
    (ASCEND, 'MindSpeed:', 'MindSpeed2:', 'PYTHONPATH'),
    (ASCEND, 'TP=4', 'TP=2', 'tensor'),
    (ASCEND, 'GBS=64', 'GBS=128', 'global'),
    (ASCEND, 'granularity full', 'granularity selective', 'granularity'),
    (ASCEND, 'local iters=$1 ckpt=$2', 'local iters=$1 ckpt=none', 'load'),
    (ASCEND, '--lr 1e-4 && run_stage', '--lr 1e-4 || run_stage', 'list'),
    (ASCEND, 'ckpt/1000 --lr 5e-5', 'ckpt/1000 --lr 6e-5', 'lr'),
    (ASCEND, '|| return 3', '|| return 0', 'return'),
    (ASCEND, 'shift 2', 'shift 1', 'shift|lr|positional'),
    (ASCEND, '-ne 0', '-gt 0', 'condition|unreached|test'),
    (ASCEND, 'set_env.sh', 'set_env2.sh', 'source|file'),
    (LONG, 'set -Eeuo pipefail', 'set -Eeo pipefail', 'set'),
    (LONG, 'SIGINT SIGTERM EXIT\n\n', 'SIGINT EXIT\n\n', 'trap'),
    (LONG, 'exit $code', 'exit 0', 'exit'),
    (LONG, 'lr=1e-3', 'lr=3e-3', 'lr|loop'),
    (LONG, 'epochs=90', 'epochs=100', 'epochs|loop'),
    (LONG, 'arch=resnet50', 'arch=resnet101', 'arch|loop'),
    (LONG, '"${1#*=}"', '"${1##*=}"', 'arch|loop'),
    (LONG, 'amp=1; shift', 'amp=2; shift', 'amp|loop|condition'),
    (LONG, '--resume) resume', '--restart) resume', 'case|condition'),
    (LONG, '--amp-dtype bfloat16', '--amp-dtype float16', 'amp-dtype'),
    (LONG, '--momentum 0.9', '--momentum 0.95', 'momentum'),
    (LONG, '(( amp )) &&', '(( amp )) ||', 'list|amp'),
    (LONG, 'mktemp -d', 'mktemp -d -p /dev/shm', 'TMP|command|rm|condition'),
    (LONG, 'nproc_per_node=4', 'nproc_per_node=8', 'nproc'),
    (PBS, 'ngpus=4', 'ngpus=2', 'select|pbs'),
    (PBS, '-q gpu', '-q gpu_long', 'pbs.q'),
    (PBS, 'ulimit -s unlimited', 'ulimit -s 8192', 'ulimit'),
    (PBS, 'IFNAME=ib0', 'IFNAME=ib1', 'IFNAME'),
    (PBS, 'gpu*)', 'g*)', 'case'),
    (PBS, '67108864', '33554432', 'HOROVOD_FUSION'),
    (PBS, 'NODES * 4', 'NODES * 2', 'mpiexec.n'),
    (PBS, '-d 16', '-d 8', 'mpiexec.d'),
    (PBS, '256 / NODES', '512 / NODES', 'batch'),
    (PBS, 'INDEX:-7', 'INDEX:-8', 'seed'),
    (PBS, 'sort -u', 'sort', 'mpiexec|NODES|batch'),
    (RETRY, 'MAX=5', 'MAX=3', 'MAX|loop|condition'),
    (RETRY, '--skip-warmup', '--no-warmup', 'warmup|resume'),
    (RETRY, 'head -1', 'tail -1', 'latest|load|resume|last|condition|ckpt'),
    (RETRY, 'code -eq 137', 'code -eq 139', 'condition'),
    (RETRY, 'expandable_segments:True', 'expandable_segments:False', 'ALLOC'),
    (RETRY, 'rm -f "$last"', 'true', 'command.rm|command'),
    (RETRY, '0.9999', '0.999', 'ema'),
    (RETRY, 'n * 30', 'n * 60', 'sleep'),
    (RETRY, 'exit 70', 'exit 1', 'exit'),
    (RETRY, '--opset 17', '--opset 18', 'opset'),
    (FUNC, '32000', '50257', 'vocab'),
    (FUNC, 'dim=1024', 'dim=1280', 'dim'),
    (FUNC, 'ARGS 2e-4', 'ARGS 1e-4', 'rate'),
    (FUNC, 'PRESET=${1:-small}', 'PRESET=${1:-large}', 'layers|dim|PRESET|heads|condition|checkpoint'),
    (FUNC, 'sched=cosine', 'sched=inverse', 'sched'),
    (FUNC, 'main) steps=9000', 'main) steps=8000', 'steps'),
    (FUNC, 'warm main cool', 'main warm cool', 'phase|steps|sched'),
    (FUNC, 'out+=( --checkpoint', 'out=( --checkpoint', 'checkpoint|layers|ARGS|out|positional|tokenizer'),
    (TMUX, '--shards 16', '--shards 8', 'shards'),
    (TMUX, 'train.env', 'test.env', 'env|declare|export|command'),
    (TMUX, 'seeds.txt', 'seeds2.txt', 'seed|redirect|mapfile'),
    (TMUX, 'i % 8', 'i % 4', 'CUDA_VIS'),
    (TMUX, '--gamma 0.99', '--gamma 0.999', 'gamma'),
    (TMUX, '|| fail=1', '|| fail=0', 'fail|condition'),
    (TMUX, '-W ignore', '-W error', 'python.W|W'),
    (TMUX, 'sleep 10', 'sleep 100', 'sleep'),
    (ENROOT, '--mem=0', '--mem=100G', 'mem'),
    (ENROOT, '6e-4\n', '5e-4\n', 'lr|LRS'),
    (ENROOT, 'FUSED_ATTN=1', 'FUSED_ATTN=0', 'FUSED'),
    (ENROOT, '--mpi=pmix', '--mpi=pmi2', 'mpi'),
    (ENROOT, 'nemo:24.07', 'nemo:24.09', 'container-image'),
    (ENROOT, 'hybrid', 'e4m3', 'fp8'),
    (ENROOT, 'TASK_ID]', 'TASK_ID-1]', 'lr|LR'),
    (PYDOC, 'SEED=0', 'SEED=1', 'PYTHONHASHSEED'),
    (PYDOC, '3f2a91c', '8c11e02', 'git'),
    (PYDOC, '0.98', '0.999', 'code'),
    (PYDOC, 'batch: 48', 'batch: 64', 'sed'),
    (PYDOC, '71h', '70h', 'timeout'),
    (PYDOC, '[4]', '[2]', 'update_freq'),
    (PYDOC, 'rc -eq 124', 'rc -eq 125', 'condition'),
    (PYDOC, 'exit $rc', 'exit 0', 'exit'),
    (PYDOC, 'errexit', 'nounset', 'set'),
    (COMPOSE, 'SEED=42', 'SEED=43', 'SEED'),
    (COMPOSE, 'BATCH:=32', 'BATCH:=64', 'batch'),
    (COMPOSE, '  BATCH=2', '  BATCH=4', 'batch'),
    (COMPOSE, '-f train.yml run --rm -e', '-f train2.yml run --rm -e', 'docker.f|docker'),
    (COMPOSE, '0.1 &&', '0.1 ||', 'list'),
    (COMPOSE, '--beam 4', '--beam 5', 'beam'),
    (COMPOSE, 'exit $status', 'exit 0', 'exit'),
    (COMPOSE, 'DEBUG:-0', 'DEBUG:-1', 'condition|batch|DEBUG'),
    (A_3, '#!/bin/bash -l', '#!/bin/bash', 'shell|set|shebang|-l|login'),
    (A_3, '=a100', '=h100', 'partition'),
    (A_3, '/envs/vit\n', '/envs/vit2\n', 'conda'),
    (A_3, '. config/run.env', '. config/other.env', 'env|file|source'),
    (A_3, 'NNODES * 8', 'NNODES * 4', 'WORLD'),
    (A_3, 'STAGE:=pretrain', 'STAGE:=finetune', 'epochs|mask|STAGE|EPOCHS'),
    (A_3, 'MASK=0.75', 'MASK=0.6', 'mask|MASK'),
    (A_3, 'exit 22', 'exit 1', 'exit|unreached'),
    (A_3, '> 200', '> 300', 'warmup|condition|WARMUP'),
    (A_3, 'WARMUP=40', 'WARMUP=20', 'warmup|WARMUP'),
    (A_3, 'ACC=2', 'ACC=4', 'accum|ACC'),
    (A_3, '--norm_pix_loss ', '', 'norm_pix'),
    (A_3, 'cpu-bind=none', 'cpu-bind=cores', 'cpu-bind'),
    (A_3, 'LOCAL_RANK=$SLURM_LOCALID', 'LOCAL_RANK=0', 'LOCAL_RANK'),
    (B_3, 'set -u', 'set -eu', 'set'),
    (B_3, '(0 1 2 3)', '(0 1 2)', 'CUDA_VISIBLE|GPUS'),
    (B_3, 'ops=true', 'ops=false', 'XLA'),
    (B_3, 'name=lion', 'name=adamw', 'optimizer'),
    (B_3, '--precision=bf16', '--precision=fp16', 'precision'),
    (B_3, 'seq 0 4', 'seq 0 3', 'fold|training'),
    (B_3, '-eq 3 ]]', '-eq 2 ]]', 'fold|condition'),
    (B_3, '&& continue', '&& break', 'continue|break|fold|training'),
    (B_3, '|& tee', '| tee', 'redirect|part|tee'),
    (B_3, 'PIPESTATUS[0]', 'PIPESTATUS[1]', 'status|variable|condition'),
    (B_3, '|| break', '|| exit 1', 'break|exit|leave'),
    (B_3, 'ddof=1', 'ddof=0', 'code'),
    (B_3, 'paste -sd,', 'paste -sd:', 'paste'),
    (C_3, 'umask 027', 'umask 077', 'umask'),
    (C_3, '/opt/venv/bin', '/opt/venv2/bin', 'PATH'),
    (C_3, 'sort | tail', 'sort -r | tail', 'init|CKPT'),
    (C_3, 'data/v7', 'data/v8', 'bucket'),
    (C_3, '|| exit 9', '|| true', 'exit|list|true'),
    (C_3, '2e9', '4e9', 'tokens'),
    (C_3, '-gt 1 ]; then\n  set', '-ge 1 ]; then\n  set', 'condition'),
    (C_3, 'full_shard', 'hybrid_shard', 'fsdp'),
    (C_3, 'max-restarts=3', 'max-restarts=0', 'restarts'),
    (C_3, 'exec python /app', 'python /app', 'training|exec'),
    (D_3, 'node01 node02 node03', 'node01 node02 node04', 'ssh|host|positional'),
    (D_3, 'rank=0\n', 'rank=1\n', 'rank'),
    (D_3, 'ALGO=Tree', 'ALGO=Ring', 'NCCL_ALGO'),
    (D_3, '--topk 2', '--topk 1', 'topk'),
    (D_3, 'rank + 1', 'rank + 2', 'rank'),
    (D_3, '> log.$rank 2>&1 &', '> log.$rank 2>&1', 'background|training|redirect|shell'),
    (D_3, '--last 5', '--last 10', 'last'),
    (D_3, 'rsync -a', 'rsync -az', 'rsync'),
    (D_3, 'env/bin/activate', 'env2/bin/activate', 'source|file'),
    (E_3, '--append-eod', '', 'append-eod'),
    (E_3, '${2:-1}', '${3:-1}', 'seed|override|variable|positional|ckpt'),
    (E_3, 'max_epochs: 12', 'max_epochs: 10', 'epochs'),
    (E_3, 'lr: 0.0005', 'lr: 0.001', 'lr'),
    (E_3, '--devices 4', '--devices 2', 'devices'),
    (E_3, 'base.yaml 12', 'base.yaml 13', 'seed'),
    (E_3, 'mv runs/latest', 'cp -r runs/latest', 'mv|cp'),
    (E_3, 'sleep 30', 'sleep 3', 'sleep'),
    (E_3, '-P2', '-P4', 'xargs'),
    (E_3, 'bleu', 'chrf', 'metric|xargs'),
    (E_3, 'models.txt', 'models2.txt', 'redirect|input'),
    (E_3, 'shift || true', 'true', 'shift|list'),
)  # fmt: skip
# Script, and replacements that change no meaning.
SPELLINGS: Final = (
    (SLURM, [('# GQA below', '# grouped'), ('  --num-layers 32\n  --hidden-size 4096', '  --num-layers 32 --hidden-size 4096')]),
    (SLURM, [('export NCCL_DEBUG=WARN\nexport NCCL_IB_TIMEOUT=22\n', 'export NCCL_IB_TIMEOUT=22 NCCL_DEBUG=WARN\n')]),
    (SLURM, [('GPUS_PER_NODE=8\n', ''), ('$GPUS_PER_NODE', '8')]),
    (SLURM, [('set -euo pipefail', 'set -e -u\nset -o pipefail')]),
    (SLURM, [('MODEL_ARGS', 'MODEL'), ('OPTIM_ARGS', 'OPT')]),
    (SLURM, [('--seed 1234 --save ckpt/llama', '--save ckpt/llama --seed 1234')]),
    (DEEP, [('STAGE=2\nBATCH=16', 'BATCH=16\nSTAGE=2')]),
    (DEEP, [('  "gradient_clipping": 1.0,\n', ''), ('"bf16"', '"gradient_clipping": 1.0,\n  "bf16"')]),
    (DEEP, [('    s) STAGE=$OPTARG ;;', '    s)\n      STAGE="$OPTARG"\n      ;;'), ('while getopts ":s:b:ch" opt; do', "while getopts ':s:b:ch' opt\ndo")]),
    (DEEP, [('2e-5', '0.00002'), ('finetune.py \\\n  --deepspeed', 'finetune.py --deepspeed')]),
    (DEEP, [('BATCH=16', 'readonly_batch=16\nBATCH=$readonly_batch')]),
    (K8S, [('export TOKENIZERS_PARALLELISM=false\nexport HF_HOME=/cache/hf\n', 'export HF_HOME=\'/cache/hf\'\nexport TOKENIZERS_PARALLELISM="false"\n')]),
    (K8S, [('if [ -f /etc/ib.conf ]; then', 'if [ -f /etc/ib.conf ]\nthen')]),
    (K8S, [('--max-steps 20000 --precision bf16', '--precision=bf16 --max-steps=20000')]),
    (K8S, [('set -eu\n', '# strict\nset -e\nset -u\n\n')]),
    (SWEEP, [('SEEDS=(0 1 2)\n', ''), ('"${SEEDS[@]}"', '0 1 2')]),
    (SWEEP, [('seed in', 's in'), ('_s${seed}', '_s${s}'), ('seed=$seed', 'seed=$s')]),
    (SWEEP, [('model=$size optim.lr=${LR[$size]} seed=$seed', 'seed=$seed model=$size optim.lr=${LR[$size]}')]),
    (SWEEP, [('GPU=$(( (GPU + 1) % 4 ))', 'GPU=$(((GPU+1)%4))')]),
    (DOCKER, [('IMAGE=nvcr.io/nvidia/pytorch:24.07-py3\n', 'TAG=24.07-py3\nIMAGE="nvcr.io/nvidia/pytorch:$TAG"\n')]),
    (DOCKER, [('--gpus all --ipc=host', '--ipc=host --gpus all'), ('  --ulimit memlock=-1 \\\n', '  --ulimit=memlock=-1 \\\n')]),
    (ASCEND, [('TP=4\nPP=2\nNPUS=8\n', 'NPUS=8\nPP=2; TP=4\n')]),
    (ASCEND, [('${MBS}', '1'), ('MBS=1\n', '')]),
    (ASCEND, [('run_stage()', 'function train_part()'), ('run_stage 1000', 'train_part 1000'), ('run_stage 4000', 'train_part 4000')]),
    (LONG, [('lr=1e-3 epochs=90 arch=resnet50', 'arch=resnet50\nlr=1e-3\nepochs=90\n')]),
    (LONG, [('--wd 1e-4 --momentum 0.9', '--momentum 0.9 --wd 1e-4')]),
    (LONG, [('--lr) lr="$2"; shift 2 ;;', '--lr)\n      lr=$2\n      shift 2\n      ;;')]),
    (LONG, [('data=/data/imagenet\n', '# where it is\nDIR=/data\ndata=$DIR/imagenet\n')]),
    (LONG, [('args=(--arch', 'params=(--arch'), ('args+=', 'params+='), ('${args[@]}', '${params[@]}')]),
    (PBS, [('export HOROVOD_FUSION_THRESHOLD=67108864 \\\n       HOROVOD_CYCLE_TIME=3.5', 'export HOROVOD_CYCLE_TIME=3.5\nexport HOROVOD_FUSION_THRESHOLD=67108864')]),
    (PBS, [('  gpu*) export NCCL_SOCKET_IFNAME=ib0 ;;', '  gpu*)\n    export NCCL_SOCKET_IFNAME="ib0"\n    ;;')]),
    (PBS, [('--dropout 0.1 --fp16', '--fp16 --dropout=0.1')]),
    (PBS, [('--lr 4e-4', '--lr $RATE'), ('ulimit', 'RATE=4e-4\nulimit')]),
    (RETRY, [('python train.py --config conf.yaml', "python train.py \\\n      --config 'conf.yaml'")]),
    (RETRY, [('--ema-decay 0.9999', '--ema-decay $DECAY'), ('MAX=5\n', 'MAX=5\nDECAY=0.9999\n')]),
    (RETRY, [('MAX=5\nn=0\n', 'n=0\nMAX=5\n')]),
    (RETRY, [('if [ $code -eq 137 ]; then', 'if [ "$code" -eq 137 ]\n  then')]),
    (FUNC, [('layers=12 dim=768 heads=12;', 'heads=12; layers=12; dim=768;')]),
    (FUNC, [('for phase in', 'for stage in'), ('case $phase', 'case ${stage}'), ('--phase $phase', '--phase $stage')]),
    (FUNC, [('preset_small', 'small_model'), ('preset_large', 'large_model')]),
    (FUNC, [('if [[ $PRESET == large ]]; then preset_large; fi', 'if [[ "$PRESET" == large ]]; then\n  preset_large   # bigger\nfi')]),
    (TMUX, [('--gamma 0.99 --horizon 128', '--horizon 128 --gamma 0.99')]),
    (TMUX, [('for i in', 'for k in'), ('i % 8', 'k % 8'), ('[$i]', '[$k]')]),
    (ENROOT, [('export UCX_TLS=rc,cuda_copy NVTE_FUSED_ATTN=1\nexport CUDA_DEVICE_MAX_CONNECTIONS=1', 'export CUDA_DEVICE_MAX_CONNECTIONS=1\nexport NVTE_FUSED_ATTN=1 UCX_TLS=rc,cuda_copy')]),
    (ENROOT, [('#SBATCH -N 8 -n 64 --gres=gpu:8\n#SBATCH --exclusive\n', '#SBATCH --exclusive\n#SBATCH -N 8\n#SBATCH -n 64\n#SBATCH --gres=gpu:8\n')]),
    (ENROOT, [('MOUNTS="/lustre:/lustre,$PWD:/code"\n', ''), ('$MOUNTS', '/lustre:/lustre,$PWD:/code')]),
    (PYDOC, [('task.data=/data/bin optimization.max_update=100000', 'optimization.max_update=100000 task.data="/data/bin"')]),
    (PYDOC, [('set -o errexit', '# stop\nset -e')]),
    (COMPOSE, [('--batch "$BATCH" --workers "$WORKERS"', '--workers=$WORKERS --batch=$BATCH')]),
    (COMPOSE, [('if [ "${DEBUG:-0}" = 1 ]; then\n  set -x', 'if [ "${DEBUG:-0}" = "1" ]\nthen\n  set -x')]),
    (A_3, [('BLR=1.5e-4\nACC=2\n', 'ACC=2\nBLR=1.5e-4\n')]),
    (A_3, [('--norm_pix_loss --batch_size 64', '--batch_size 64 --norm_pix_loss')]),
    (A_3, [('  pretrain) EPOCHS=300; MASK=0.75 ;;', '  pretrain)\n    EPOCHS=300\n    MASK=0.75\n    ;;')]),
    (A_3, [('$ACC', '2'), ('ACC=2\n', '')]),
    (A_3, [('if (( EPOCHS > 200 )); then WARMUP=40; else WARMUP=5; fi', 'if (( EPOCHS > 200 )); then\n  WARMUP=40\nelse\n  WARMUP=5\nfi')]),
    (B_3, [('opts+=(--optimizer.name=lion)\nopts+=(--optimizer.lr=3e-5 --optimizer.wd=1.0)', 'opts+=(--optimizer.wd=1.0 --optimizer.lr=3e-5 --optimizer.name=lion)')]),
    (B_3, [('opts=()\n', ''), ('opts+=(--optimizer.name=lion)', 'opts=(--optimizer.name=lion)')]),
    (B_3, [('$(seq 0 4)', '0 1 2 3 4')]),
    (B_3, [('--fold "$fold" --folds 5', '--folds 5 --fold $fold')]),
    (B_3, [('for fold in', 'for k in'), ('$fold', '$k')]),
    (C_3, [('export HOME=/home/app PATH="/opt/venv/bin:$PATH"', "export PATH=/opt/venv/bin:$PATH\nexport HOME='/home/app'")]),
    (C_3, [('if [ -z "${CKPT:-}" ]; then', 'if [ -z "${CKPT:-}" ]   # none given\nthen')]),
    (C_3, [('--nproc-per-node="$NPROC" --max-restarts=3', '--max-restarts 3 --nproc-per-node $NPROC')]),
    (D_3, [('PORT=41000\nrank=0\n', 'rank=0\nPORT=41000\n')]),
    (D_3, [('$PORT', '41000'), ('PORT=41000\n', '')]),
    (D_3, [('for host in', 'for h in'), ('$host', '$h')]),
    (D_3, [('HOSTS="node01 node02 node03"', "HOSTS='node01 node02 node03'")]),
    (E_3, [('function prepare {', 'prepare() {'), ('function train {', 'train() {')]),
    (E_3, [('trainer:\n  seed: $seed\n  max_epochs: 12\noptim:\n  name: adamw\n  lr: 0.0005', 'optim:\n  lr: 5.0e-4\n  name: adamw\ntrainer:\n  max_epochs: 12\n  seed: $seed')]),
    (E_3, [('local cfg=$1 seed=${2:-1}', 'local cfg="$1"\n  local seed="${2:-1}"')]),
    (E_3, [('train cfg/base.yaml 11 --ckpt none\ntrain cfg/base.yaml 12 --ckpt none', 'for s in 11 12; do\n  train cfg/base.yaml $s --ckpt none\ndone')]),
    (E_3, [('--accelerator gpu --devices 4', '--devices=4 --accelerator=gpu')]),
)  # fmt: skip
