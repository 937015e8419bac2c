//! The state machine: jobs ask, prepare, serve, come and go; it answers with samples.

use super::classes::{Classes, Key, Prefer, Region, Seats};
use super::seats::{Joined, Place, SEATS_MAX, Table};
use super::window::{Stage, Window};
use super::{Choice, EntryId, Home, JobKey, Part, Seat, SharedError, SharedSettings, SharedStats, Verdict};
use crate::bits::Bits;
use crate::{Form, Ledger, LedgerError, SampleId, SampleRng, SavedLedger, Stream};

/// Serves the samples of one dataset to several jobs, each sample once per job and epoch, preparing as few as possible.
///
/// Every call costs O(1) in the size of the dataset, but for those that say otherwise.
#[derive(Clone, Debug)]
pub struct SharedOrder {
    settings: SharedSettings,
    table: Table,
    classes: Classes,
    window: Window,
    pinned: Bits,
    pinned_count: u32,
    /// Jobs that have asked since they were last found paused.
    awake: Seats,
    rng: SampleRng,
    stats: SharedStats,
}

impl SharedOrder {
    /// A dataset that nobody uses yet.
    #[must_use]
    pub fn new(settings: SharedSettings) -> Self {
        Self {
            table: Table::default(),
            classes: Classes::new(settings.samples),
            window: Window::new(settings.samples, settings.window_bytes),
            pinned: Bits::new(settings.samples),
            pinned_count: 0,
            awake: 0,
            rng: SampleRng::with_stream(settings.seed, Stream::Shared, 0, 0),
            stats: SharedStats::default(),
            settings,
        }
    }

    /// Seats a job, or one rank of it. Looks at every entry of the window.
    ///
    /// # Errors
    /// When 64 are here already.
    pub fn join(&mut self, job: JobKey, dropped: &mut Vec<EntryId>) -> Result<Seat, SharedError> {
        let Joined { seat, group, displaced } = self.table.join(job).ok_or(SharedError::TooManyJobs)?;
        let bit = bit_of(seat);
        if displaced {
            // The seat stood for a job that may come back and would not be known again: what it has had goes.
            for (id, entry) in self.window.current() {
                if entry.used & bit != 0 && self.send_home(id, entry.sample) {
                    dropped.push(id);
                }
            }
        }
        self.window.rewrite_used(|used| if used & group != 0 { used | bit } else { used & !bit });
        Ok(seat)
    }

    /// Ends a job's part. What only it waited for is dropped; what it was preparing can be prepared by others. Looks at every
    /// class and every entry of the window.
    ///
    /// # Errors
    /// When it has left before.
    pub fn leave(&mut self, seat: Seat, dropped: &mut Vec<EntryId>) -> Result<(), SharedError> {
        self.quit(seat, dropped)?;
        self.table.leave(seat);
        Ok(())
    }

    /// Gives up the rest of a job's epoch, and all its leases. Looks at every class and every entry of the window.
    ///
    /// # Errors
    /// When the job has left.
    pub fn quit(&mut self, seat: Seat, dropped: &mut Vec<EntryId>) -> Result<(), SharedError> {
        let place = self.table.get_mut(seat).ok_or(SharedError::NotSeated)?;
        place.books.clear();
        place.lacks = 0;
        place.lacks_pinned = 0;
        place.pinned_due = 0.0;
        let bit = bit_of(seat);
        self.classes.rename(|key| Key { lacking: key.lacking & !bit, barred: key.barred & !bit, ..key });
        self.expire(seat, dropped)
    }

    /// A job has not asked for long, as its owner finds: until it asks again nothing is kept for it, and what it was
    /// preparing can be prepared by others. Looks at every entry of the window.
    ///
    /// # Errors
    /// When the job has left.
    pub fn expire(&mut self, seat: Seat, dropped: &mut Vec<EntryId>) -> Result<(), SharedError> {
        self.table.get(seat).ok_or(SharedError::NotSeated)?;
        self.awake &= !bit_of(seat);
        for (id, entry) in self.window.current() {
            let welcome = self.classes.key_of(entry.sample).welcome() & self.awake;
            let forgotten = match entry.stage {
                Stage::Pending { preparer } => preparer == seat.index,
                _ => welcome == 0,
            };
            if forgotten && self.send_home(id, entry.sample) {
                dropped.push(id);
            }
        }
        Ok(())
    }

    /// Begins an epoch, or takes one up where a [checkpoint](Self::checkpoint) left it.
    ///
    /// A whole epoch from its beginning looks at every class and every entry of the window, anything else at every sample of
    /// the part.
    ///
    /// # Errors
    /// When the last epoch still lacks samples, or the checkpoint or the part belongs to another dataset.
    pub fn begin(
        &mut self,
        seat: Seat,
        epoch: u32,
        part: Part<'_>,
        checkpoint: Option<&SavedLedger>,
    ) -> Result<(), SharedError> {
        let samples = self.settings.samples;
        let ledger = match checkpoint {
            Some(saved) => Ledger::load(saved)?,
            None => Ledger::new(samples),
        };
        if ledger.len() != samples {
            return Err(SharedError::OtherDataset { ledger: ledger.len(), samples });
        }
        if let Part::Of(part) = part
            && let Some(wrong) = part.iter().find(|sample| sample.0 >= samples)
        {
            return Err(SharedError::NoSuchSample { sample: wrong.0, samples });
        }
        let place = self.table.get_mut(seat).ok_or(SharedError::NotSeated)?;
        if let Some((epoch, _)) = place.books.back().filter(|_| place.lacks > 0) {
            return Err(SharedError::EpochUnfinished { epoch: *epoch, lacks: place.lacks });
        }
        place.books.retain(|(_, ledger)| ledger.leased() > 0);
        if place.books.iter().any(|(running, _)| *running == epoch) {
            return Err(SharedError::EpochRunning(epoch));
        }
        place.pinned_due = 0.0;
        // A job that goes on where another left off may have had, as that one, anything that stands here now.
        let goes_on = !std::mem::replace(&mut place.known, true) && (epoch > 0 || checkpoint.is_some());
        self.awake |= bit_of(seat);
        match part {
            Part::Whole if ledger.left() == samples => self.lack_everything(seat),
            Part::Whole => ledger.remaining().for_each(|position| self.put_back(seat, SampleId(position))),
            Part::Of(part) => {
                for &sample in part.iter().filter(|sample| !ledger.is_done(sample.0)) {
                    self.put_back(seat, sample);
                }
            }
        }
        if goes_on {
            self.window.current().into_iter().for_each(|(id, _)| self.bar(id, seat));
        }
        let place = self.table.get_mut(seat).ok_or(SharedError::NotSeated)?;
        place.books.push_back((epoch, ledger));
        Ok(())
    }

    /// What was handed out in an epoch that another has followed will not reach the trainer any more, if any of it is still on its way.
    pub fn forget_epoch(&mut self, seat: Seat, epoch: u32) {
        if let Some(place) = self.table.get_mut(seat)
            && place.books.back().is_some_and(|(current, _)| *current != epoch)
        {
            place.books.retain(|(past, _)| *past != epoch);
        }
    }

    /// The next sample for a job.
    ///
    /// # Errors
    /// When the job has left.
    pub fn next(&mut self, seat: Seat) -> Result<Choice, SharedError> {
        let place = self.table.get(seat).ok_or(SharedError::NotSeated)?;
        if place.lacks == 0 {
            return Ok(Choice::EpochDone);
        }
        let bit = bit_of(seat);
        self.awake |= bit;
        let regions = if place.pinned_due + share_pinned(place) >= 0.5 {
            [Region::Pinned, Region::Storage]
        } else {
            [Region::Storage, Region::Pinned]
        };
        let lacks = |key: &Key| key.lacking & bit != 0;
        let lacks_at_home = |key: &Key| lacks(key) && matches!(key.region, Region::Storage | Region::Pinned);

        if self.settings.mixing > 0.0
            && self.rng.chance(self.settings.mixing)
            && let Some(sample) = self.classes.probe(&mut self.rng, lacks_at_home)
        {
            return self.prepare(seat, sample);
        }
        // Those that fewest others wait for go first: that empties the window soonest.
        let may_take = |key: &Key| key.welcome() & bit != 0;
        if let Some(sample) = self.draw(&[Region::Ready], Prefer::LeastWanted, may_take) {
            return self.take(seat, sample);
        }
        let prefer = if self.window.is_full() { Prefer::LeastWanted } else { Prefer::MostWanted };
        if let Some(sample) = self.draw(&regions, prefer, lacks) {
            return self.prepare(seat, sample);
        }
        let barred = |key: &Key| key.barred & bit != 0;
        if let Some(sample) = self.draw(&[Region::Ready, Region::Pending], Prefer::LeastWanted, barred) {
            return self.prepare_again(seat, sample);
        }
        Ok(Choice::Await)
    }

    /// The next sample for a job that will not wait: where [`SharedOrder::next`] would say [`Choice::Await`], the job prepares a
    /// copy of its own of what another is preparing.
    ///
    /// # Errors
    /// When the job has left.
    pub fn insist(&mut self, seat: Seat) -> Result<Choice, SharedError> {
        let choice = self.next(seat)?;
        if choice != Choice::Await {
            return Ok(choice);
        }
        let bit = bit_of(seat);
        let lacks = |key: &Key| key.lacking & bit != 0;
        match self.draw(&[Region::Pending], Prefer::LeastWanted, lacks) {
            Some(sample) => self.prepare_again(seat, sample),
            None => Ok(Choice::Await),
        }
    }

    /// A sample that others want as well is prepared. Whoever makes room for it is appended to `dropped`.
    pub fn ready(&mut self, id: EntryId, bytes: u64, dropped: &mut Vec<EntryId>) -> Verdict {
        self.window.learn_size(bytes);
        let Some(sample) = self.pending(id) else {
            // Given up meanwhile: its preparer had been found paused, or gone.
            self.stats.let_go += 1;
            return Verdict::LetGo;
        };
        let key = self.classes.key_of(sample);
        let waiting = (key.welcome() & self.awake).count_ones();
        if waiting == 0 || !self.make_room(bytes, waiting, dropped) {
            self.stats.let_go += 1;
            self.send_home(id, sample);
            return Verdict::LetGo;
        }
        self.window.settle(id, bytes);
        self.classes.place(sample, Key { region: Region::Ready, ..key });
        self.stats.kept += 1;
        Verdict::Keep
    }

    /// Whether a job waits for an entry that is being prepared or stands ready: it has not had it and will ask for it.
    #[must_use]
    pub fn is_wanted_by(&self, id: EntryId, seat: Seat) -> bool {
        let Some(entry) = self.window.get(id) else { return false };
        let welcome = self.classes.key_of(entry.sample).welcome() & self.awake;
        self.table.get(seat).is_some() && welcome & bit_of(seat) != 0
    }

    /// A job has no use for an entry that is being prepared or stands ready, since no form of it serves what the job makes of samples: it is
    /// not given it, in this epoch or a later one, and nobody keeps it for that job.
    pub fn bar(&mut self, id: EntryId, seat: Seat) {
        let Some(entry) = self.window.get(id).filter(|entry| entry.stage != Stage::Leaving) else { return };
        let (sample, bit) = (entry.sample, bit_of(seat));
        if self.table.get(seat).is_none() {
            return;
        }
        self.window.mark_used(id, bit);
        let key = self.classes.key_of(sample);
        self.classes.place(sample, Key { barred: key.barred | (bit & key.lacking), ..key });
    }

    /// Something is to be put beside an entry that the job was told to take and has not [copied](Self::copied) yet. False where there is no
    /// room for it: nobody makes way for a second form.
    pub fn enlarge(&mut self, id: EntryId, bytes: u64) -> bool {
        self.window.get(id).is_some() && self.window.fits(bytes) && self.window.enlarge(id, bytes)
    }

    /// The preparation of a sample that others want as well has come to nothing; somebody else may try.
    pub fn abandon(&mut self, id: EntryId) {
        if let Some(sample) = self.pending(id) {
            self.send_home(id, sample);
        }
    }

    /// A job has copied what it was told to take, also when it has left meanwhile. Entries that nobody else waits for leave now.
    pub fn copied(&mut self, id: EntryId, dropped: &mut Vec<EntryId>) {
        if self.window.get(id).is_some() && self.window.release(id) {
            dropped.push(id);
        }
    }

    /// A sample has reached the trainer.
    ///
    /// # Errors
    /// When it was not handed out to the job in that epoch, or was served already.
    pub fn served(&mut self, seat: Seat, epoch: u32, sample: SampleId) -> Result<(), SharedError> {
        self.settle_lease(seat, epoch, |ledger| ledger.serve(sample.0))
    }

    /// A sample is bad, and the user's policy was to go on.
    ///
    /// # Errors
    /// When it was not handed out to the job in that epoch, or was served already.
    pub fn failed(&mut self, seat: Seat, epoch: u32, sample: SampleId) -> Result<(), SharedError> {
        self.settle_lease(seat, epoch, |ledger| ledger.fail(sample.0))
    }

    /// A sample that was handed out did not reach the trainer: the job lacks it again.
    ///
    /// # Errors
    /// When it was not handed out to the job, or in an epoch that is past.
    pub fn release(&mut self, seat: Seat, epoch: u32, sample: SampleId) -> Result<(), SharedError> {
        let place = self.table.get_mut(seat).ok_or(SharedError::NotSeated)?;
        let current = place.books.back().map(|(current, _)| *current);
        let ledger = book_of(place, epoch)?;
        if current != Some(epoch) {
            return Err(SharedError::EpochOver(epoch));
        }
        ledger.release(sample.0)?;
        self.put_back(seat, sample);
        Ok(())
    }

    /// The sample has come into memory, or left it.
    ///
    /// # Errors
    /// When the dataset has no such sample.
    pub fn set_pinned(&mut self, sample: SampleId, pinned: bool) -> Result<(), SharedError> {
        let samples = self.settings.samples;
        if sample.0 >= samples {
            return Err(SharedError::NoSuchSample { sample: sample.0, samples });
        }
        if self.pinned.get(sample.0) == pinned {
            return Ok(());
        }
        self.pinned.set(sample.0, pinned);
        let key = self.classes.key_of(sample);
        if pinned {
            self.pinned_count += 1;
            self.table.each(key.lacking, |place| place.lacks_pinned += 1);
        } else {
            self.pinned_count -= 1;
            self.table.each(key.lacking, |place| place.lacks_pinned -= 1);
        }
        if matches!(key.region, Region::Storage | Region::Pinned) {
            self.classes.place(sample, Key { region: self.home_of(sample), ..key });
        }
        Ok(())
    }

    /// Changes what the window may take. A smaller window takes nothing in until enough has been used up.
    pub fn set_window_bytes(&mut self, bytes: u64) {
        self.window.set_budget(bytes);
    }

    /// What the window takes now.
    #[must_use]
    pub fn window_used_bytes(&self) -> u64 {
        self.window.used_bytes()
    }

    /// What a checkpoint of the job keeps: its oldest epoch that is not all served, and the samples it has had in it. What was
    /// handed out and not served is lacked again after a restart.
    ///
    /// # Errors
    /// When the job has left.
    pub fn checkpoint(&self, seat: Seat) -> Result<Option<(u32, SavedLedger)>, SharedError> {
        let place = self.table.get(seat).ok_or(SharedError::NotSeated)?;
        Ok(place.books.front().map(|(epoch, ledger)| (*epoch, ledger.save())))
    }

    /// How many samples a job has not been handed out in its epoch.
    ///
    /// # Errors
    /// When the job has left.
    pub fn lacks(&self, seat: Seat) -> Result<u32, SharedError> {
        Ok(self.table.get(seat).ok_or(SharedError::NotSeated)?.lacks)
    }

    /// How many different sets of jobs lack some sample: the length of the longest search in here.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes.count()
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> SharedStats {
        self.stats
    }

    /// A sample from the first region that has an eligible one.
    fn draw(
        &mut self,
        regions: &[Region],
        prefer: Prefer,
        eligible: impl Fn(&Key) -> bool,
    ) -> Option<SampleId> {
        let draw = |&region| self.classes.draw(region, prefer, self.awake, &mut self.rng, &eligible);
        regions.iter().find_map(draw)
    }

    fn take(&mut self, seat: Seat, sample: SampleId) -> Result<Choice, SharedError> {
        self.lease(seat, sample)?;
        let entry = self.window.of(sample).expect("a sample in the region Ready has an entry");
        self.window.hold(entry);
        self.mark_used(seat, entry, sample);
        if self.classes.key_of(sample).welcome() & self.awake == 0 {
            // The last one to want it. Its memory stays until the copy is done.
            self.send_home(entry, sample);
        }
        self.stats.taken += 1;
        Ok(Choice::Take { sample, entry })
    }

    fn prepare(&mut self, seat: Seat, sample: SampleId) -> Result<Choice, SharedError> {
        self.lease(seat, sample)?;
        let key = self.classes.key_of(sample);
        self.count_preparation(sample);
        let from = if key.region == Region::Pinned { Home::Pinned } else { Home::Storage };
        if key.lacking & self.awake & !self.keeps_from(seat) == 0 {
            return Ok(Choice::Prepare {
                sample,
                from,
                generation: self.window.next_generation(),
                share: None,
            });
        }
        let entry = self.window.begin(sample, seat.index, 0);
        self.classes.place(sample, Key { region: Region::Pending, ..key });
        self.mark_used(seat, entry, sample);
        Ok(Choice::Prepare { sample, from, generation: entry.generation(), share: Some(entry) })
    }

    /// A copy for one job alone, of a sample of which the window has, or will have, one that it cannot use.
    fn prepare_again(&mut self, seat: Seat, sample: SampleId) -> Result<Choice, SharedError> {
        self.lease(seat, sample)?;
        self.count_preparation(sample);
        self.stats.prepared_again += 1;
        let from = if self.pinned.get(sample.0) { Home::Pinned } else { Home::Storage };
        Ok(Choice::Prepare { sample, from, generation: self.window.next_generation(), share: None })
    }

    fn count_preparation(&mut self, sample: SampleId) {
        if self.pinned.get(sample.0) {
            self.stats.prepared_pinned += 1;
        } else {
            self.stats.prepared_storage += 1;
        }
    }

    /// The job gets the sample: the ledger agrees, or nothing happens.
    fn lease(&mut self, seat: Seat, sample: SampleId) -> Result<(), SharedError> {
        let is_pinned = self.pinned.get(sample.0);
        let place = self.table.get_mut(seat).ok_or(SharedError::NotSeated)?;
        let (_, ledger) = place.books.back_mut().expect("a job that lacks samples is in an epoch");
        ledger.lease(sample.0)?;
        place.pinned_due += share_pinned(place) - f64::from(u8::from(is_pinned));
        place.lacks -= 1;
        place.lacks_pinned -= u32::from(is_pinned);
        let bit = bit_of(seat);
        let key = self.classes.key_of(sample);
        self.classes.place(sample, Key { lacking: key.lacking & !bit, barred: key.barred & !bit, ..key });
        Ok(())
    }

    /// The job lacks the sample (again). Asking twice changes nothing.
    fn put_back(&mut self, seat: Seat, sample: SampleId) {
        let bit = bit_of(seat);
        let key = self.classes.key_of(sample);
        if key.lacking & bit != 0 {
            return;
        }
        let barred = key.barred | (self.window.used_by(sample) & bit);
        self.classes.place(sample, Key { lacking: key.lacking | bit, barred, ..key });
        let is_pinned = u32::from(self.pinned.get(sample.0));
        self.table.each(bit, |place| {
            place.lacks += 1;
            place.lacks_pinned += is_pinned;
        });
    }

    /// The job lacks all samples; it lacked none before.
    fn lack_everything(&mut self, seat: Seat) {
        let bit = bit_of(seat);
        self.classes.rename(|key| Key { lacking: key.lacking | bit, ..key });
        // That is the same for all, but for the few it has had in an earlier epoch and that still stand in the window.
        for (_, entry) in self.window.current() {
            let key = self.classes.key_of(entry.sample);
            self.classes.place(entry.sample, Key { barred: key.lacking & entry.used, ..key });
        }
        let (samples, pinned_count) = (self.settings.samples, self.pinned_count);
        self.table.each(bit, |place| {
            place.lacks = samples;
            place.lacks_pinned = pinned_count;
        });
    }

    fn settle_lease(
        &mut self,
        seat: Seat,
        epoch: u32,
        settle: impl FnOnce(&mut Ledger) -> Result<(), LedgerError>,
    ) -> Result<(), SharedError> {
        let place = self.table.get_mut(seat).ok_or(SharedError::NotSeated)?;
        settle(book_of(place, epoch)?)?;
        while place.books.len() > 1 && place.books[0].1.leased() == 0 {
            place.books.pop_front();
        }
        Ok(())
    }

    /// Whom an entry is kept from once this job has it: all its ranks, when the entry is augmented.
    fn keeps_from(&self, seat: Seat) -> Seats {
        match self.settings.window_form {
            Form::Augmented => self.table.get(seat).map_or(0, |place| place.group),
            Form::Storage | Form::Encoded | Form::Decoded => 0,
        }
    }

    /// The entry is, or will be, this job's: no rank of it gets the same tensor again.
    fn mark_used(&mut self, seat: Seat, entry: EntryId, sample: SampleId) {
        let group = self.keeps_from(seat);
        self.window.mark_used(entry, group);
        let key = self.classes.key_of(sample);
        self.classes.place(sample, Key { barred: key.barred | (group & key.lacking), ..key });
    }

    /// The entry is nobody's any more, and its sample is again to be had only where it comes from. True when memory is free
    /// for it at once.
    fn send_home(&mut self, id: EntryId, sample: SampleId) -> bool {
        let key = self.classes.key_of(sample);
        let region = self.home_of(sample);
        self.classes.place(sample, Key { region, barred: 0, ..key });
        self.window.forget(id)
    }

    /// Drops entries that fewer than `waiting` jobs wait for until `bytes` fit.
    fn make_room(&mut self, bytes: u64, waiting: u32, dropped: &mut Vec<EntryId>) -> bool {
        while !self.window.fits(bytes) {
            let awake = self.awake;
            let fewer = |key: &Key| (key.welcome() & awake).count_ones() < waiting;
            let victim = self.draw(&[Region::Ready], Prefer::LeastWanted, fewer);
            let Some(sample) = victim else { return false };
            let Some(id) = self.window.of(sample).filter(|&id| !self.window.is_held(id)) else {
                // Being copied this moment: it will be gone soon, but not in time for this one.
                return false;
            };
            if self.send_home(id, sample) {
                dropped.push(id);
            }
            self.stats.displaced += 1;
        }
        true
    }

    /// The sample of an entry that is being prepared.
    fn pending(&self, id: EntryId) -> Option<SampleId> {
        let entry = self.window.get(id)?;
        matches!(entry.stage, Stage::Pending { .. }).then_some(entry.sample)
    }

    fn home_of(&self, sample: SampleId) -> Region {
        if self.pinned.get(sample.0) { Region::Pinned } else { Region::Storage }
    }
}

fn bit_of(seat: Seat) -> Seats {
    1 << seat.index
}

fn book_of(place: &mut Place, epoch: u32) -> Result<&mut Ledger, SharedError> {
    let book = place.books.iter_mut().find(|(current, _)| *current == epoch);
    book.map(|(_, ledger)| ledger).ok_or(SharedError::NoSuchEpoch(epoch))
}

/// How much of what a job lacks is pinned.
fn share_pinned(place: &Place) -> f64 {
    f64::from(place.lacks_pinned) / f64::from(place.lacks.max(1))
}

const _: () = assert!(SEATS_MAX == Seats::BITS as usize);

#[cfg(test)]
mod tests;
