//! Worker processes keep the memory that one sample took for the next.
//!
//! A large picture takes a hundred megabytes or two while it is prepared. glibc gives them back to the system as soon as they
//! are free at the end of the heap, and takes them anew for the next sample, page by page: as many page faults as there are
//! pages, which took as long as decoding did. Whether that happens is luck: anything that lies behind them prevents it.

/// What may lie free at the end of the heap, in bytes. More than a camera's picture takes; what a giant took beyond it goes back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: libc::c_int = 256 << 20;

/// From here on a block is the system's, not the heap's: glibc allows no more.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_BYTES: libc::c_int = 32 << 20;

/// How a user tells glibc the same.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TOLD_BY: [&str; 3] = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"];

/// Lets this process keep up to 256 MiB that it has freed, for what comes next. Where its environment tells glibc what to keep, that
/// holds.
pub fn keep_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if TOLD_BY.iter().all(|name| std::env::var_os(name).is_none()) {
        // SAFETY: these set two numbers of the allocator, under its lock. A refusal leaves things as they are.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_BYTES);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        }
    }
}
