#!/bin/sh
# A study as eight jobs that know nothing of each other; any scheduler with array jobs will do.
#
#     sbatch examples/slurm/jobs.sh study.toml results/study
#
# Each job trains an eighth of the units into the same folder. A job that is stopped or killed goes on where it was saved
# when it is submitted again:  sbatch --array=3 examples/slurm/jobs.sh study.toml results/study
# At any time:                 fedtempo show results/study

#SBATCH --array=1-8
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120

# Two minutes before its time is over a job is told to stop: it saves, and what is left is done by the next submission.
trap 'kill -TERM "$job"; wait "$job"' TERM
fedtempo run "$1" --out "$2" --units "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --quiet &
job=$!
wait "$job"
