// SPDX-License-Identifier: Apache-2.0
//! The name of a host within a launched job, from what its launcher tells each rank.

use std::fs;

use xxhash_rust::xxh3::xxh3_128;

/// The run id of torchrun without `--rdzv-id` or `--standalone`, equal for all such jobs.
const NO_RUN_ID: &str = "none";

/// Values that identify a run of a job on this node. All ranks of the run have equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LauncherValues {
    /// `TORCHELASTIC_RUN_ID`.
    pub run_id: Option<String>,
    /// `TORCHELASTIC_RESTART_COUNT`.
    pub restart_count: Option<String>,
    /// `MASTER_ADDR` and `MASTER_PORT`, which distinguish torchrun jobs without a run id.
    pub master: Option<(String, String)>,
    /// `GROUP_RANK`, the number of torchrun's agent: two agents on one node are two nodes of their job.
    pub group_rank: Option<String>,
    /// `SLURM_JOB_ID` and `SLURM_STEP_ID`, with `SLURM_RESTART_COUNT` (0 if absent).
    pub slurm: Option<(String, String, String)>,
    /// `SLURM_STEP_NUM_TASKS`. In a step of one task, a user may start several jobs by hand.
    pub slurm_tasks: Option<u32>,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<String>,
}

impl LauncherValues {
    /// Read them from the environment of this process.
    pub fn from_environment() -> Self {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let slurm = || {
            let restarts = value("SLURM_RESTART_COUNT").unwrap_or_else(|| "0".into());
            Some((value("SLURM_JOB_ID")?, value("SLURM_STEP_ID")?, restarts))
        };
        Self {
            run_id: value("TORCHELASTIC_RUN_ID"),
            restart_count: value("TORCHELASTIC_RESTART_COUNT"),
            master: value("MASTER_ADDR").zip(value("MASTER_PORT")),
            group_rank: value("GROUP_RANK"),
            slurm: slurm(),
            slurm_tasks: value("SLURM_STEP_NUM_TASKS").and_then(|tasks| tasks.parse().ok()),
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .ok()
                .map(|id| id.trim().to_owned()),
        }
    }

    /// The file name of the socket for this run of user `uid`; `None` if nothing identifies the run.
    ///
    /// It is a hash, because a run id may have any length and any character. The boot id separates nodes that share
    /// the directory, and runs before and after a reboot.
    pub(super) fn file_name(&self, uid: u32) -> Option<String> {
        let boot_id = self.boot_id.as_ref()?;
        let mut parts = vec![uid.to_string(), boot_id.clone()];
        let torch = self.torch();
        let slurm = self.slurm.as_ref().filter(|_| torch.is_some() || self.slurm_tasks > Some(1));
        if torch.is_none() && slurm.is_none() {
            return None;
        }
        for group in [torch, slurm.map(|(job, step, restarts)| vec![&**job, step, restarts])] {
            // The count keeps a missing group apart from an empty one.
            parts.push(group.as_ref().map_or(0, Vec::len).to_string());
            parts.extend(group.into_iter().flatten().map(str::to_owned));
        }
        let mut text = Vec::new();
        for part in &parts {
            text.extend((part.len() as u64).to_le_bytes());
            text.extend(part.as_bytes());
        }
        Some(format!("job-{:032x}.sock", xxh3_128(&text)))
    }

    fn torch(&self) -> Option<Vec<&str>> {
        let (run_id, restarts) = (self.run_id.as_deref()?, self.restart_count.as_deref()?);
        let mut values = vec![run_id, restarts];
        match &self.master {
            Some((address, port)) => values.extend([&**address, port]),
            None if run_id == NO_RUN_ID => return None,
            None => {}
        }
        values.extend(self.group_rank.as_deref());
        Some(values)
    }
}
