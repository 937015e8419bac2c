//! The walk below the root, several folders at a time.
//!
//! A folder is the unit of work: reading one gives the names in it and more folders to read. The kernel says of each
//! name whether it is a folder, so no file is looked at; only links are followed to see where they lead. Threads take
//! folders in any order, and the caller sorts what they found.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::extensions::Extensions;
use super::leftovers::Leftovers;
use crate::error::StoreError;
use crate::listing::join;
use crate::progress::Progress;
use crate::text::{code_point_order, is_utf8};

/// Names come from the kernel in portions of this size: some two thousand, a few hundred microseconds of work.
const PORTION_BYTES: usize = 64 << 10;

/// What every folder of one walk has in common.
pub(super) struct Walk<'a> {
    pub(super) root: &'a Path,
    pub(super) extensions: &'a Extensions,
    /// Whether the root should hold a folder for each class.
    pub(super) in_classes: bool,
    pub(super) progress: &'a dyn Progress,
}

/// What was found directly in one folder.
pub(super) struct Folder {
    /// The class, as an index into the sorted classes.
    pub(super) class: u32,
    /// Relative to the root.
    pub(super) path: Vec<u8>,
    /// The names of its samples, sorted, one after another.
    pub(super) names: Vec<u8>,
    /// Where each of them ends.
    pub(super) name_ends: Vec<usize>,
    pub(super) leftovers: Leftovers,
}

impl Folder {
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.name_ends.iter().copied());
        starts.zip(&self.name_ends).map(|(start, &end)| &self.names[start..end])
    }
}

/// A folder still to be read.
struct Task {
    class: u32,
    path: Vec<u8>,
    /// The folder it lies in; the root lies in none.
    above: Option<Arc<Open>>,
}

/// A folder on the way from the root to another one.
struct Open {
    device: u64,
    inode: u64,
    path: Vec<u8>,
    above: Option<Arc<Open>>,
}

impl Walk<'_> {
    /// The names of the folders directly under the root, sorted, and the files that lie beside them.
    pub(super) fn classes(&self) -> Result<(Vec<Vec<u8>>, Leftovers), StoreError> {
        let root = self.open_root()?;
        let mut classes = Vec::new();
        let mut loose = Leftovers::default();
        for_each_entry(&root, &mut Vec::new(), |name, file_type| {
            // A link that cannot be followed might be a class, and leaving one out would shift the labels after it.
            if is_folder(&root, name, file_type).map_err(|errno| self.failure(name.to_bytes(), errno))? {
                classes.push(name.to_bytes().to_vec());
            } else {
                loose.add(name.to_bytes());
            }
            Ok(())
        })
        .map_err(|failure| self.entry_failure(b"", failure))?;
        classes.sort_unstable_by(|left: &Vec<u8>, right| code_point_order(left, right));
        Ok((classes, loose))
    }

    fn open_root(&self) -> Result<OwnedFd, StoreError> {
        open_folder(self.root).map_err(|errno| match errno {
            Errno::NOENT => StoreError::missing(self.root),
            Errno::NOTDIR => StoreError::NotAFolder { path: self.root.to_owned(), classes: self.in_classes },
            errno => self.failure(b"", errno),
        })
    }

    /// Everything below the classes, in no order.
    pub(super) fn folders(&self, classes: &[Vec<u8>], threads: usize) -> Result<Vec<Folder>, StoreError> {
        let root = open_folder(self.root).map_err(|errno| self.failure(b"", errno))?;
        let root = Arc::new(self.identify(&root, Vec::new(), None)?);
        let tasks = classes.iter().zip(0..);
        let tasks = tasks.map(|(class, number)| Task {
            class: number,
            path: class.clone(),
            above: Some(root.clone()),
        });
        self.walk(tasks.collect(), threads)
    }

    /// Everything in the root and below it, in no order, as one class.
    pub(super) fn everything(&self, threads: usize) -> Result<Vec<Folder>, StoreError> {
        drop(self.open_root()?);
        self.walk(vec![Task { class: 0, path: Vec::new(), above: None }], threads)
    }

    /// Everything in these folders and below them.
    fn walk(&self, tasks: Vec<Task>, threads: usize) -> Result<Vec<Folder>, StoreError> {
        let queue = Queue::new(tasks);

        let found = Mutex::new(Vec::new());
        let work = || {
            let folders = self.work(&queue);
            let mut found = lock(&found);
            found.push(folders);
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without another thread the work takes longer and is done all the same.
                if std::thread::Builder::new().name("sutler-list".into()).spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });

        let mut folders = Vec::new();
        for part in found.into_inner().unwrap_or_else(PoisonError::into_inner) {
            folders.append(&mut part?);
        }
        Ok(folders)
    }

    /// One thread's share.
    fn work(&self, queue: &Queue) -> Result<Vec<Folder>, StoreError> {
        let mut folders = Vec::new();
        let mut scratch = Scratch::default();
        while let Some(turn) = queue.next() {
            let folder = self.read_folder(turn.task, &mut scratch).inspect_err(|_| queue.stop())?;
            queue.add(&mut scratch.tasks);
            self.progress.listed(folder.name_ends.len() as u64);
            if !folder.name_ends.is_empty() || !folder.leftovers.is_empty() {
                folders.push(folder);
            }
        }
        Ok(folders)
    }

    /// Reads one folder; those in it are left in the scratch.
    fn read_folder(&self, task: Task, scratch: &mut Scratch) -> Result<Folder, StoreError> {
        let Task { class, path, above } = task;
        let fd = open_folder(&self.path(&path)).map_err(|errno| self.failure(&path, errno))?;
        let open = Arc::new(self.identify(&fd, path.clone(), above)?);

        let mut leftovers = Leftovers::default();
        let Scratch { portion, names, spans, tasks } = scratch;
        names.clear();
        spans.clear();
        let mut all_utf8 = true;
        for_each_entry(&fd, portion, |name, file_type| {
            let below = match is_folder(&fd, name, file_type) {
                // A link to itself is no folder; as a sample it will say so when it is read.
                Err(Errno::LOOP) => false,
                answer => answer.map_err(|errno| {
                    let mut link = path.clone();
                    join(&mut link, name.to_bytes());
                    self.failure(&link, errno)
                })?,
            };
            let name = name.to_bytes();
            if below {
                let mut path = path.clone();
                join(&mut path, name);
                tasks.push(Task { class, path, above: Some(open.clone()) });
            } else if self.extensions.accept(name) {
                all_utf8 = all_utf8 && is_utf8(name);
                spans.push((names.len(), names.len() + name.len()));
                names.extend_from_slice(name);
            } else {
                leftovers.add(name);
            }
            Ok(())
        })
        .map_err(|failure| self.entry_failure(&path, failure))?;

        let order = if all_utf8 { <[u8]>::cmp } else { code_point_order };
        spans.sort_unstable_by(|left, right| order(&names[left.0..left.1], &names[right.0..right.1]));
        let mut sorted = Vec::with_capacity(names.len());
        let mut name_ends = Vec::with_capacity(spans.len());
        for &(start, end) in spans.iter() {
            sorted.extend_from_slice(&names[start..end]);
            name_ends.push(sorted.len());
        }
        Ok(Folder { class, path, names: sorted, name_ends, leftovers })
    }

    /// Notes which folder this is, and refuses one that lies in itself.
    fn identify(&self, fd: &OwnedFd, path: Vec<u8>, above: Option<Arc<Open>>) -> Result<Open, StoreError> {
        let stat = rustix::fs::fstat(fd).map_err(|errno| self.failure(&path, errno))?;
        let mut next = above.as_deref();
        while let Some(open) = next {
            if (open.device, open.inode) == (stat.st_dev, stat.st_ino) {
                return Err(StoreError::LinkLoop { link: self.path(&path), target: self.path(&open.path) });
            }
            next = open.above.as_deref();
        }
        Ok(Open { device: stat.st_dev, inode: stat.st_ino, path, above })
    }

    fn path(&self, relative: &[u8]) -> PathBuf {
        match relative {
            b"" => self.root.to_owned(),
            _ => self.root.join(OsStr::from_bytes(relative)),
        }
    }

    fn failure(&self, relative: &[u8], errno: Errno) -> StoreError {
        StoreError::List { path: self.path(relative), source: errno.into() }
    }

    fn entry_failure(&self, relative: &[u8], failure: EntryFailure) -> StoreError {
        match failure {
            EntryFailure::Folder(errno) => self.failure(relative, errno),
            EntryFailure::Visitor(error) => error,
        }
    }
}

/// What a thread keeps from one folder to the next.
#[derive(Default)]
struct Scratch {
    portion: Vec<u8>,
    names: Vec<u8>,
    spans: Vec<(usize, usize)>,
    tasks: Vec<Task>,
}

fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Why a folder could not be read to its end.
enum EntryFailure {
    Folder(Errno),
    Visitor(StoreError),
}

/// Visits each name in a folder, without `.` and `..`.
fn for_each_entry(
    fd: &OwnedFd,
    portion: &mut Vec<u8>,
    mut visit: impl FnMut(&CStr, FileType) -> Result<(), StoreError>,
) -> Result<(), EntryFailure> {
    portion.clear();
    portion.reserve(PORTION_BYTES);
    let mut entries = RawDir::new(fd, portion.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(EntryFailure::Folder)?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            visit(name, entry.file_type()).map_err(EntryFailure::Visitor)?;
        }
    }
    Ok(())
}

/// Whether a name stands for a folder, at the end of all links.
fn is_folder(parent: &OwnedFd, name: &CStr, file_type: FileType) -> Result<bool, Errno> {
    match file_type {
        FileType::Directory => Ok(true),
        FileType::Symlink | FileType::Unknown => {
            match rustix::fs::statat(parent.as_fd(), name, AtFlags::empty()) {
                Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
                Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
                Err(errno) => Err(errno),
            }
        }
        _ => Ok(false),
    }
}

/// Folders to be read, shared by the threads of a walk.
struct Queue {
    /// Held for a push or a pop; nobody reads a folder under it.
    state: Mutex<QueueState>,
    /// Told when folders arrive and when none can arrive any more.
    changed: Condvar,
}

struct QueueState {
    tasks: Vec<Task>,
    /// Threads that are reading a folder and may yet find more. The walk is over when it is zero and `tasks` is empty.
    busy: usize,
    /// A thread has met an error, so the rest need not be read.
    stopped: bool,
}

/// A thread's turn at one folder; the queue hears of its end even when the thread panics.
struct Turn<'a> {
    task: Task,
    _busy: Busy<'a>,
}

struct Busy<'a>(&'a Queue);

impl Queue {
    fn new(tasks: Vec<Task>) -> Self {
        let state = QueueState { tasks, busy: 0, stopped: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The next folder; waits while there is none but another thread may find one.
    fn next(&self) -> Option<Turn<'_>> {
        let state = self.changed.wait_while(lock(&self.state), |state| {
            !state.stopped && state.tasks.is_empty() && state.busy > 0
        });
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return None;
        }
        let task = state.tasks.pop()?;
        state.busy += 1;
        Some(Turn { task, _busy: Busy(self) })
    }

    fn add(&self, tasks: &mut Vec<Task>) {
        if !tasks.is_empty() {
            lock(&self.state).tasks.append(tasks);
            self.changed.notify_all();
        }
    }

    fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_all();
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.busy -= 1;
        if state.busy == 0 {
            self.0.changed.notify_all();
        }
    }
}

/// The states behind these locks are whole between any two statements, so a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
