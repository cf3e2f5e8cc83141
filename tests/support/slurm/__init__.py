"""A stand-in for Slurm: its commands on PATH, its signals and its environment, on this machine alone.

`with Slurm(folder) as slurm:` begins a controller in this process; programs that are started with
`slurm.environment()` find `sbatch`, `srun`, `scontrol`, `squeue`, `sacct` and `scancel`. A test says when a
job loses its machine (`slurm.preempt`), and waits for what comes of it (`slurm.wait`).

As in Slurm's documentation (from memory of its pages; nothing was compared with a real Slurm):

- sbatch: the script is copied as it is submitted; `#SBATCH` lines up to the first command, the command line
  above them; arrays with steps and a throttle, `--dependency`, `--requeue`, `--wrap`, `--export`,
  `--parsable`, patterns of output files; an option that it does not know is an error. Each task of an array
  is a job with an id of its own, the first with that of the array.
- `--signal=SIG@SECONDS` goes to every process of the steps (what srun started), not to the batch shell;
  with `B:` to the batch shell alone. At the end of the time SIGCONT and SIGTERM go to every process of the
  job, and SIGKILL after KillWait.
- `scontrol requeue`: what runs is ended so, and the job waits and starts again from its script's beginning,
  under its id, with SLURM_RESTART_COUNT one higher. A preempted job is queued again if it was submitted with
  `--requeue`; else it ends as PREEMPTED. One that ends by itself meanwhile has ended.
- srun hands on the signals that it gets; one that runs in a job's script starts a step. The highest exit code
  is its own.

- squeue shows a job to everybody; `-u`, and the SQUEUE_ variables, leave out what is another LOGNAME's.

What it does not do: accounts, partitions and their limits, memory, GPUs, several machines (every node is
localhost), time limits (a test preempts), priorities, `salloc`, scripts from the input. A process of a job is
known by its environment, as Slurm knows it by its cgroup: one that clears its environment escapes.
"""

from support.slurm.controller import Job, Slurm

__all__ = ["Job", "Slurm"]
