//! Workers give way to the trainer.
//!
//! A trainer that takes a batch makes room for another one, so it wakes a worker while it has a batch in its hands. To
//! the kernel the worker has slept and the trainer has not: the worker gets the trainer's core, and keeps it for some
//! milliseconds, though nobody is in a hurry for what it prepares. With [`give_way`] a worker that is woken waits for a
//! free core or for the end of somebody's turn. Its share of the cores stays what it was.

/// Lets this thread, and those it starts, never take a core from another one by waking up (`SCHED_BATCH`).
///
/// Who was given a policy of another kind keeps it. A system that refuses leaves things as they are, which costs the
/// trainer some milliseconds here and there and nobody anything else, so it is not an error.
pub fn give_way() {
    #[cfg(target_os = "linux")]
    {
        const THIS_THREAD: libc::pid_t = 0;
        // SAFETY: the call reads nothing of ours.
        let policy = unsafe { libc::sched_getscheduler(THIS_THREAD) };
        if policy == libc::SCHED_OTHER {
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: the parameters outlive the call, which only reads them.
            let _ =
                unsafe { libc::sched_setscheduler(THIS_THREAD, libc::SCHED_BATCH, &raw const parameters) };
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::give_way;

    fn policy() -> libc::c_int {
        // SAFETY: the call reads nothing of ours.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_gives_way_by_itself() {
        let before = policy();
        let (other, started_by_it) = std::thread::spawn(|| {
            give_way();
            (policy(), std::thread::spawn(policy).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((other, started_by_it), (libc::SCHED_BATCH, libc::SCHED_BATCH));
        assert_eq!(policy(), before, "who started it is as before");
    }

    #[test]
    fn another_policy_is_kept() {
        let kept = std::thread::spawn(|| {
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: the parameters outlive the call, which only reads them.
            let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
            assert_eq!(set, 0);
            give_way();
            policy()
        });
        assert_eq!(kept.join().unwrap(), libc::SCHED_IDLE);
    }
}
