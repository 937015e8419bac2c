//! How much memory there is to have: the machine's, or what a container was given of it.

use std::path::{Path, PathBuf};

/// The memory a process can have at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// How many bytes.
    pub bytes: u64,
    /// Whose limit it is, as words that follow "more than": `this machine has`.
    pub of: &'static str,
}

/// The smallest of the machine's memory and the limits of the control groups this process is in; `None` where the system
/// tells nothing.
#[must_use]
pub fn memory_limit() -> Option<MemoryLimit> {
    limit_below(Path::new("/"))
}

fn limit_below(root: &Path) -> Option<MemoryLimit> {
    let machine = machine_bytes(root).map(|bytes| MemoryLimit { bytes, of: "this machine has" });
    let group =
        group_bytes(root).map(|bytes| MemoryLimit { bytes, of: "this process's control group may use" });
    [machine, group].into_iter().flatten().min_by_key(|limit| limit.bytes)
}

fn machine_bytes(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit on the way from this process's control group to the root; a limit anywhere above binds as well.
fn group_bytes(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = groups.lines().flat_map(|line| {
        // "0::/path" in version 2, "4:memory:/path" in version 1.
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next(), fields.next(), fields.next());
        let (mount, file) = match (number, controllers) {
            (Some("0"), Some("")) => ("sys/fs/cgroup", "memory.max"),
            (_, Some(controllers)) if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        limits_on_the_way(&root.join(mount), path.unwrap_or("/"), file)
    });
    limits.min()
}

fn limits_on_the_way(mount: &Path, path: &str, file: &str) -> Vec<u64> {
    let relative = PathBuf::from(path.trim_start_matches('/'));
    // Inside a container the path may be that of the host and not be there; the mount itself then is the group.
    relative
        .ancestors()
        .filter_map(|group| std::fs::read_to_string(mount.join(group).join(file)).ok())
        .filter_map(|text| text.trim().parse().ok()) // "max" is no limit
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n");

    #[test]
    fn without_control_groups_it_is_the_machine() {
        let root = machine(&[MEMINFO]);
        let limit = limit_below(root.path()).unwrap();
        assert_eq!((limit.bytes, limit.of), (16_384_000_000, "this machine has"));
    }

    #[test]
    fn a_limit_anywhere_above_binds() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/memory.max", "2000000000\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
        ]);
        assert_eq!(limit_below(root.path()).unwrap().bytes, 2_000_000_000);
    }

    #[test]
    fn the_older_layout_and_a_path_of_the_host_are_understood() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/\n4:memory:/docker/abc\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000000\n"),
        ]);
        assert_eq!(limit_below(root.path()).unwrap().bytes, 1_000_000_000);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_limit().is_some_and(|limit| limit.bytes > 1 << 20));
    }
}
