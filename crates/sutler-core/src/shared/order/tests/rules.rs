//! The rules one by one: join, leave, pause, the tail, ranks, restarts.

use super::super::*;

fn order_of(samples: u32, window_bytes: u64, window_form: Form) -> SharedOrder {
    SharedOrder::new(SharedSettings { samples, seed: 1, window_bytes, window_form, mixing: 0.0 })
}

fn seated(order: &mut SharedOrder, job: u64) -> Seat {
    let seat = order.join(JobKey(job), &mut Vec::new()).unwrap();
    order.begin(seat, 0, Part::Whole, None).unwrap();
    seat
}

/// Prepares the next sample and puts it into the window.
fn prepare(order: &mut SharedOrder, seat: Seat) -> (SampleId, EntryId) {
    let Choice::Prepare { sample, share: Some(entry), .. } = order.next(seat).unwrap() else {
        panic!("there was nothing to share")
    };
    assert_eq!(order.ready(entry, 1, &mut Vec::new()), Verdict::Keep);
    (sample, entry)
}

#[test]
fn the_last_user_takes_an_entry_away() {
    let mut order = order_of(10, 10, Form::Augmented);
    let jobs = [0, 1, 2].map(|job| seated(&mut order, job));
    let (sample, entry) = prepare(&mut order, jobs[0]);
    let mut dropped = Vec::new();
    assert_eq!(order.next(jobs[1]), Ok(Choice::Take { sample, entry }));
    order.copied(entry, &mut dropped);
    assert!(dropped.is_empty() && order.window_used_bytes() == 1);
    assert_eq!(order.next(jobs[2]), Ok(Choice::Take { sample, entry }));
    assert_eq!(order.window_used_bytes(), 1, "its memory stays while it is copied");
    order.copied(entry, &mut dropped);
    assert_eq!(dropped, [entry]);
    assert_eq!(order.window_used_bytes(), 0);
}

#[test]
fn a_second_form_takes_room_and_leaves_with_its_entry() {
    let mut order = order_of(10, 5, Form::Augmented);
    let jobs = [0, 1, 2].map(|job| seated(&mut order, job));
    let (_, entry) = prepare(&mut order, jobs[0]);
    assert_eq!(jobs.map(|job| order.is_wanted_by(entry, job)), [false, true, true]);
    order.next(jobs[1]).unwrap();
    assert_eq!(jobs.map(|job| order.is_wanted_by(entry, job)), [false, false, true]);
    assert!(!order.enlarge(entry, 5), "there is room for four more");
    assert!(order.enlarge(entry, 4));
    assert_eq!(order.window_used_bytes(), 5);
    order.copied(entry, &mut Vec::new());
    order.next(jobs[2]).unwrap();
    assert!(!order.enlarge(entry, 0), "nobody will take it any more");
    let mut dropped = Vec::new();
    order.copied(entry, &mut dropped);
    assert_eq!((dropped, order.window_used_bytes()), (vec![entry], 0));
    assert!(!order.is_wanted_by(entry, jobs[2]) && !order.enlarge(entry, 0));
}

/// A job with other transforms than those it was prepared for can do nothing with an entry.
#[test]
fn what_is_of_no_use_to_a_job_is_neither_given_to_it_nor_kept_for_it() {
    let mut order = order_of(10, 10, Form::Augmented);
    let jobs = [0, 1].map(|job| seated(&mut order, job));
    let (sample, standing) = prepare(&mut order, jobs[0]);
    let newcomers = [2, 3].map(|job| seated(&mut order, job));
    newcomers.iter().for_each(|&newcomer| order.bar(standing, newcomer));
    assert!(order.is_wanted_by(standing, jobs[1]) && !order.is_wanted_by(standing, newcomers[0]));
    let (other, pending) = match order.next(newcomers[0]).unwrap() {
        Choice::Prepare { sample, share: Some(entry), .. } => (sample, entry),
        choice => panic!("{choice:?} instead of something new"),
    };
    assert_ne!(other, sample);
    // Before it is ready it turns out that it serves nobody else.
    for seat in [jobs[0], jobs[1], newcomers[1]] {
        order.bar(pending, seat);
    }
    assert_eq!(order.ready(pending, 1, &mut Vec::new()), Verdict::LetGo);
    let mut dropped = Vec::new();
    assert_eq!(order.next(jobs[1]), Ok(Choice::Take { sample, entry: standing }));
    order.bar(standing, jobs[0]);
    order.copied(standing, &mut dropped);
    assert_eq!(dropped, [standing], "it was not kept for the newcomers");
    // From now on it is a sample like any other that the two lack: whoever prepares it does so for both.
    let mut reads_of_it = 0;
    for &newcomer in newcomers.iter().rev().cycle().take(2 * 10 - 1) {
        match order.next(newcomer).unwrap() {
            Choice::Prepare { sample: read, share, .. } => {
                reads_of_it += u32::from(read == sample);
                if let Some(entry) = share {
                    order.ready(entry, 1, &mut Vec::new());
                }
            }
            Choice::Take { entry, .. } => order.copied(entry, &mut Vec::new()),
            choice => panic!("{choice:?}"),
        }
    }
    assert_eq!(reads_of_it, 1);
    assert!(newcomers.iter().all(|&newcomer| order.lacks(newcomer) == Ok(0)));
}

#[test]
fn an_epoch_that_another_has_followed_can_be_forgotten() {
    let mut order = order_of(2, 10, Form::Augmented);
    let seat = seated(&mut order, 0);
    let Choice::Prepare { sample, .. } = order.next(seat).unwrap() else { panic!() };
    order.next(seat).unwrap();
    order.forget_epoch(seat, 0);
    assert_eq!(order.served(seat, 0, sample), Ok(()), "not the one it is in");
    order.begin(seat, 1, Part::Whole, None).unwrap();
    order.forget_epoch(seat, 0);
    assert!(matches!(order.checkpoint(seat), Ok(Some((1, _)))));
    assert_eq!(order.lacks(seat), Ok(2));
}

#[test]
fn under_pressure_the_entry_with_the_fewest_users_goes() {
    let mut order = order_of(10, 1, Form::Augmented);
    let jobs = [0, 1, 2].map(|job| seated(&mut order, job));
    let (sample, first) = prepare(&mut order, jobs[0]);
    let Choice::Prepare { share: Some(second), .. } = order.next(jobs[0]).unwrap() else { panic!() };
    let mut dropped = Vec::new();
    assert_eq!(order.next(jobs[1]), Ok(Choice::Take { sample, entry: first }));
    assert_eq!(order.ready(second, 1, &mut dropped), Verdict::LetGo, "what is being copied cannot make room");
    assert_eq!(order.stats().displaced, 0, "and is not displaced in vain");
    order.copied(first, &mut dropped);
    let Choice::Prepare { share: Some(third), .. } = order.next(jobs[0]).unwrap() else { panic!() };
    assert_eq!(order.ready(third, 1, &mut dropped), Verdict::Keep, "two wait for it, one for the other");
    assert_eq!(dropped, [first]);
    assert_eq!(order.stats().displaced, 1);
    let Choice::Prepare { share: Some(fourth), .. } = order.next(jobs[0]).unwrap() else { panic!() };
    assert_eq!(
        order.ready(fourth, 1, &mut dropped),
        Verdict::LetGo,
        "no more wait for it than for the third"
    );
    assert_eq!(order.ready(fourth, 1, &mut dropped), Verdict::LetGo, "and it is settled");
}

#[test]
fn a_smaller_window_takes_nothing_in_until_it_has_emptied() {
    let mut order = order_of(10, 3, Form::Augmented);
    let jobs = [0, 1].map(|job| seated(&mut order, job));
    for _ in 0..3 {
        prepare(&mut order, jobs[0]);
    }
    order.set_window_bytes(1);
    let mut dropped = Vec::new();
    let Choice::Prepare { share: Some(late), .. } = order.next(jobs[0]).unwrap() else { panic!() };
    assert_eq!(order.ready(late, 1, &mut dropped), Verdict::LetGo);
    assert!(dropped.is_empty() && order.window_used_bytes() == 3, "what is wanted stays");
    for _ in 0..3 {
        let Choice::Take { entry, .. } = order.next(jobs[1]).unwrap() else { panic!() };
        order.copied(entry, &mut dropped);
    }
    assert_eq!((dropped.len(), order.window_used_bytes()), (3, 0));
    prepare(&mut order, jobs[0]);
}

#[test]
fn at_the_tail_a_job_may_wait_or_insist() {
    let mut order = order_of(1, 10, Form::Augmented);
    let jobs = [0, 1].map(|job| seated(&mut order, job));
    let Choice::Prepare { sample, share: Some(entry), generation, .. } = order.next(jobs[0]).unwrap() else {
        panic!()
    };
    assert_eq!(order.next(jobs[0]), Ok(Choice::EpochDone));
    assert_eq!(order.next(jobs[1]), Ok(Choice::Await));
    let patient = &mut order.clone();
    patient.ready(entry, 1, &mut Vec::new());
    assert_eq!(patient.next(jobs[1]), Ok(Choice::Take { sample, entry }));
    let Choice::Prepare { sample: own, share: None, generation: other, .. } = order.insist(jobs[1]).unwrap()
    else {
        panic!()
    };
    assert!(own == sample && other != generation);
    assert_eq!(order.ready(entry, 1, &mut Vec::new()), Verdict::LetGo, "nobody waits for it now");
    assert_eq!(order.stats().prepared_again, 1);
}

#[test]
fn what_a_job_was_preparing_is_free_when_it_pauses_leaves_or_fails() {
    for way in ["pause", "leave", "abandon"] {
        let mut order = order_of(1, 10, Form::Augmented);
        let jobs = [0, 1].map(|job| seated(&mut order, job));
        let Choice::Prepare { share: Some(entry), .. } = order.next(jobs[0]).unwrap() else { panic!() };
        assert_eq!(order.next(jobs[1]), Ok(Choice::Await));
        let mut dropped = Vec::new();
        match way {
            "pause" => order.expire(jobs[0], &mut dropped).unwrap(),
            "leave" => order.leave(jobs[0], &mut dropped).unwrap(),
            _ => order.abandon(entry),
        }
        assert!(dropped.is_empty(), "it had no memory yet");
        assert!(matches!(order.next(jobs[1]), Ok(Choice::Prepare { .. })), "after {way}");
        assert_eq!(order.ready(entry, 1, &mut dropped), Verdict::LetGo, "too late");
    }
}

#[test]
fn a_paused_job_loses_nothing_but_reuse() {
    let mut order = order_of(20, 20, Form::Augmented);
    let jobs = [0, 1].map(|job| seated(&mut order, job));
    let mut dropped = Vec::new();
    let kept: Vec<EntryId> = (0..5).map(|_| prepare(&mut order, jobs[0]).1).collect();
    order.expire(jobs[1], &mut dropped).unwrap();
    dropped.sort();
    assert_eq!(dropped, kept, "nothing is kept for it");
    let Choice::Prepare { share, .. } = order.next(jobs[0]).unwrap() else { panic!() };
    assert_eq!(share, None, "nothing is shared with it");
    let mut served = 0;
    while let Choice::Prepare { sample, .. } = order.next(jobs[1]).unwrap() {
        order.served(jobs[1], 0, sample).unwrap();
        served += 1;
    }
    assert_eq!(served, 20);
}

#[test]
fn a_latecomer_shares_what_stands_ready() {
    let mut order = order_of(10, 10, Form::Augmented);
    let jobs = [0, 1].map(|job| seated(&mut order, job));
    let (sample, entry) = prepare(&mut order, jobs[0]);
    let late = seated(&mut order, 2);
    assert_eq!(order.next(late), Ok(Choice::Take { sample, entry }));
    assert_eq!(order.next(jobs[1]), Ok(Choice::Take { sample, entry }));
}

/// A job alone in its epoch, with an entry in the window that it has had in the epoch before.
fn second_epoch(form: Form) -> (SharedOrder, Seat, EntryId) {
    let mut order = order_of(2, 10, form);
    let fast = seated(&mut order, 0);
    let slow = seated(&mut order, 1);
    let (_, entry) = prepare(&mut order, fast);
    let Choice::Prepare { share: Some(other), .. } = order.next(fast).unwrap() else { panic!() };
    order.ready(other, 1, &mut Vec::new());
    assert_eq!(order.lacks(slow), Ok(2));
    order.begin(fast, 1, Part::Whole, None).unwrap();
    (order, fast, entry)
}

#[test]
fn augmented_entries_are_not_served_again_in_the_next_epoch_but_decoded_ones_are() {
    let (mut order, fast, _) = second_epoch(Form::Augmented);
    for _ in 0..2 {
        assert!(matches!(order.next(fast), Ok(Choice::Prepare { share: None, .. })));
    }
    assert_eq!(order.next(fast), Ok(Choice::EpochDone));
    let (mut order, fast, _) = second_epoch(Form::Decoded);
    for _ in 0..2 {
        assert!(matches!(order.next(fast), Ok(Choice::Take { .. })));
    }
}

#[test]
fn coming_back_does_not_make_a_tensor_new() {
    let (mut order, fast, _) = second_epoch(Form::Augmented);
    order.leave(fast, &mut Vec::new()).unwrap();
    assert_eq!(order.next(fast), Err(SharedError::NotSeated));
    let again = seated(&mut order, 0);
    let other_rank = seated(&mut order, 0);
    let stranger = seated(&mut order, 7);
    assert!(matches!(order.next(again), Ok(Choice::Prepare { share: None, .. })));
    assert!(matches!(order.next(other_rank), Ok(Choice::Prepare { share: None, .. })));
    assert!(matches!(order.next(stranger), Ok(Choice::Take { .. })));
}

/// When seats run out and one is given to another job, nobody remembers what the first had: so it goes.
#[test]
fn a_seat_that_changes_hands_takes_its_memory_along() {
    let (mut order, fast, entry) = second_epoch(Form::Augmented);
    let mut dropped = Vec::new();
    order.leave(fast, &mut dropped).unwrap();
    for job in 2..64 {
        seated(&mut order, job);
    }
    assert!(dropped.is_empty());
    order.join(JobKey(99), &mut dropped).unwrap();
    assert!(dropped.contains(&entry) && dropped.len() == 2);
    assert_eq!(order.join(JobKey(0), &mut dropped), Err(SharedError::TooManyJobs));
}

#[test]
fn ranks_of_one_job_serve_their_shares() {
    let mut order = order_of(9, 9, Form::Augmented);
    let shares = [0, 1, 2].map(|rank| (0..9).filter(|id| id % 3 == rank).map(SampleId).collect::<Vec<_>>());
    for share in &shares {
        let seat = order.join(JobKey(5), &mut Vec::new()).unwrap();
        order.begin(seat, 0, Part::Of(share), None).unwrap();
        let mut served = Vec::new();
        while let Choice::Prepare { sample, share: None, .. } = order.next(seat).unwrap() {
            order.served(seat, 0, sample).unwrap();
            served.push(sample);
        }
        served.sort();
        assert_eq!(&served, share);
    }
}

#[test]
fn a_checkpoint_has_what_was_served_and_nothing_that_was_on_its_way() {
    let mut order = order_of(6, 6, Form::Augmented);
    let seat = seated(&mut order, 0);
    let mut handed_out = Vec::new();
    for _ in 0..4 {
        let Choice::Prepare { sample, .. } = order.next(seat).unwrap() else { panic!() };
        handed_out.push(sample);
    }
    order.served(seat, 0, handed_out[0]).unwrap();
    order.failed(seat, 0, handed_out[1]).unwrap();
    let (epoch, saved) = order.checkpoint(seat).unwrap().unwrap();
    let mut other = order_of(6, 6, Form::Augmented);
    let resumed = other.join(JobKey(0), &mut Vec::new()).unwrap();
    other.begin(resumed, epoch, Part::Whole, Some(&saved)).unwrap();
    let mut rest = Vec::new();
    while let Choice::Prepare { sample, .. } = other.next(resumed).unwrap() {
        rest.push(sample);
    }
    rest.extend(&handed_out[..2]);
    rest.sort();
    assert_eq!(rest, (0..6).map(SampleId).collect::<Vec<_>>());
}

#[test]
fn the_next_epoch_begins_while_the_last_one_is_on_its_way() {
    let mut order = order_of(2, 2, Form::Augmented);
    let seat = seated(&mut order, 0);
    let Choice::Prepare { sample: first, .. } = order.next(seat).unwrap() else { panic!() };
    assert_eq!(
        order.begin(seat, 1, Part::Whole, None).unwrap_err().to_string(),
        "epoch 0 still lacks 1 sample; quit it before another begins"
    );
    let Choice::Prepare { sample: second, .. } = order.next(seat).unwrap() else { panic!() };
    assert_eq!(order.begin(seat, 0, Part::Whole, None), Err(SharedError::EpochRunning(0)));
    order.begin(seat, 1, Part::Whole, None).unwrap();
    order.served(seat, 0, first).unwrap();
    assert_eq!(order.checkpoint(seat).unwrap().unwrap().0, 0);
    assert_eq!(order.release(seat, 0, second), Err(SharedError::EpochOver(0)));
    order.served(seat, 0, second).unwrap();
    assert_eq!(order.checkpoint(seat).unwrap().unwrap().0, 1);
    assert_eq!(order.served(seat, 0, second), Err(SharedError::NoSuchEpoch(0)));
    assert_eq!(order.lacks(seat), Ok(2));
}

#[test]
fn wrong_requests_are_explained() {
    let mut order = order_of(3, 3, Form::Augmented);
    let seat = order.join(JobKey(0), &mut Vec::new()).unwrap();
    assert_eq!(order.next(seat), Ok(Choice::EpochDone));
    assert_eq!(
        order.begin(seat, 0, Part::Of(&[SampleId(3)]), None).unwrap_err().to_string(),
        "sample 3 was named, but the dataset has 3 samples"
    );
    assert_eq!(
        order.begin(seat, 0, Part::Whole, Some(&Ledger::new(4).save())).unwrap_err().to_string(),
        "the ledger is for 4 samples, but the dataset has 3; resume with the dataset it was saved for"
    );
    order.begin(seat, 0, Part::Whole, None).unwrap();
    assert_eq!(
        order.served(seat, 0, SampleId(1)).unwrap_err().to_string(),
        "sample ids are the positions of a job's ledger, and position 1 is not leased"
    );
    assert_eq!(
        order.set_pinned(SampleId(3), true).unwrap_err(),
        SharedError::NoSuchSample { sample: 3, samples: 3 }
    );
}
