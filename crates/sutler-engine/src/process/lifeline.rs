//! A worker process ends with its trainer, whatever either of them is doing at that moment.
//!
//! A worker that waits for orders sees its trainer go: the socket closes. One that is at a sample looks at no socket, perhaps
//! for minutes, and with `fork` its younger siblings hold copies of the trainer's end. So each worker has a thread that
//! does nothing but wait for the trainer's end. It needs no interpreter lock, which the sample may hold.

use std::ffi::c_int;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, test_kill_process};

/// How often to look for the trainer where the kernel cannot tell when it ends (Linux before 5.3, some sandboxes).
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Ends this process when another one ends, and at once if that is gone already. Then also deletes `traces`, files that the
/// other would have deleted had it been allowed to, and the folders that are empty without them.
///
/// # Errors
/// When the number is none of a process, or no thread can be started.
pub fn end_with(trainer: c_int, traces: Vec<PathBuf>) -> io::Result<()> {
    let trainer = Pid::from_raw(trainer).ok_or(Errno::SRCH)?;
    let handle = match pidfd_open(trainer, PidfdFlags::empty()) {
        Ok(handle) => Some(handle),
        Err(Errno::SRCH) => end(&traces),
        Err(_) => None,
    };
    thread::Builder::new().name("sutler-lifeline".to_owned()).stack_size(64 << 10).spawn(move || {
        match handle {
            Some(handle) => wait_for(&handle),
            None => {
                while test_kill_process(trainer) != Err(Errno::SRCH) {
                    thread::sleep(LOOK_EVERY);
                }
            }
        }
        end(&traces)
    })?;
    Ok(())
}

/// Returns when the process behind a handle has ended.
fn wait_for(handle: &OwnedFd) {
    loop {
        match poll(&mut [PollFd::new(handle, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            Err(_) => thread::sleep(LOOK_EVERY), // no memory for the wait itself: there may be some later
            Ok(_) => return,
        }
    }
}

fn end(traces: &[PathBuf]) -> ! {
    for trace in traces {
        // Whoever of the workers comes first deletes it; a folder stays if it holds anything else.
        let _ = std::fs::remove_file(trace);
        if let Some(folder) = trace.parent() {
            let _ = std::fs::remove_dir(folder);
        }
    }
    // Not `exit`: nothing that runs at the end of a process could be of use to anybody, and some of it might wait.
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}
