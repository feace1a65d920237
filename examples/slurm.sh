#!/bin/bash
# A sweep on several machines under SLURM: a Ray head on the first node, a Ray worker on each of the others, and the command.
#
#   sbatch examples/slurm.sh onepass run er er+mkd --data cifar100 --memory 5000 --seeds 0 1 2 3 4 --runs /shared/runs
#
# `--engine ray --address HOST:PORT` is added to the command.  --runs has to be a folder that all nodes see, or add
# `--store URL`.  The job's end ends everything; the same sbatch line goes on where it was.
#SBATCH --job-name=onepass
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
# On GPUs, too:  #SBATCH --gpus-per-node=1
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "usage: sbatch $0 onepass run METHOD ... --runs FOLDER" >&2
    exit 2
fi

PORT=${ONEPASS_PORT:-6379}
CORES=${SLURM_CPUS_PER_TASK:-1}
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
ADDRESS=$(srun --nodes=1 --ntasks=1 --nodelist="${NODES[0]}" hostname --ip-address | awk '{ print $1 }')

# Only who knows the token may join: on a shared cluster, anybody could send work to an open port.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
export RAY_USAGE_STATS_ENABLED=0
GPUS=(${SLURM_GPUS_ON_NODE:+--num-gpus "$SLURM_GPUS_ON_NODE"})

STARTED=()
stop() { for pid in "${STARTED[@]}"; do kill -TERM "$pid" 2> /dev/null || true; done; wait; }
trap stop EXIT

# --block: the Ray processes of a node live as long as their srun.
srun --nodes=1 --ntasks=1 --overlap --nodelist="${NODES[0]}" \
    ray start --head --block --node-ip-address "$ADDRESS" --port "$PORT" --num-cpus "$CORES" "${GPUS[@]}" \
    --include-dashboard false &
STARTED+=($!)

for _ in $(seq 60); do
    ray status --address "$ADDRESS:$PORT" > /dev/null 2>&1 && break
    kill -0 "${STARTED[0]}" 2> /dev/null || { echo "the Ray head on ${NODES[0]} ended" >&2; exit 1; }
    sleep 1
done

for node in "${NODES[@]:1}"; do
    srun --nodes=1 --ntasks=1 --overlap --nodelist="$node" \
        ray start --block --address "$ADDRESS:$PORT" --num-cpus "$CORES" "${GPUS[@]}" &
    STARTED+=($!)
done

# Those that come later are used as well; this waits a minute for all of them, and no longer.
for _ in $(seq 60); do
    [ "$(ray status --address "$ADDRESS:$PORT" 2> /dev/null | grep -c ' node_')" -ge "${#NODES[@]}" ] && break
    sleep 1
done

"$@" --engine ray --address "$ADDRESS:$PORT" &
COMMAND=$!
trap 'kill -TERM "$COMMAND"' TERM  # SLURM's, two minutes before the end: every run saves where it is
code=0
wait "$COMMAND" || code=$?
if [ "$code" -gt 128 ]; then  # it was the signal that ended the waiting, not the command
    code=0
    wait "$COMMAND" || code=$?
fi
exit "$code"
