//! Whose turn it is: single decisions of the lanes, each in a situation made for it.

use std::collections::VecDeque;

use super::*;

fn waiting(id: u64, batch: u64, work: u64) -> Waiting {
    Waiting { id, batch, work, holder: None }
}

#[test]
fn a_slow_sample_is_begun_when_it_needs_the_start() {
    let traffic = Traffic {
        workers: 4,
        seats: 2,
        busy_with_slow: 0,
        front: 3,
        lateness: 0,
        last: 99,
        batch_time: 10_000,
        slow_time: 0,
        median: 0,
        fast: Some(3),
    };
    let mut lanes = Lanes::default();
    lanes.set_aside(waiting(1, 7, 5_000));
    assert_eq!(lanes.next(0, &traffic), Turn::Fast, "there is time for it");
    lanes.set_aside(waiting(2, 5, 20_000));
    assert_eq!(lanes.next(0, &traffic), Turn::Slow(waiting(2, 5, 20_000)));
    assert!(lanes.holds(1) && !lanes.holds(2));
    lanes.set_aside(waiting(3, 5, 30_000));
    lanes.running = 2;
    assert_eq!(lanes.next(0, &traffic), Turn::Fast, "the slow lane is full");
    let come = Traffic { fast: Some(5), ..traffic };
    assert_eq!(lanes.next(0, &come), Turn::Slow(waiting(3, 5, 30_000)), "its turn has come");
    let idle = Traffic { fast: None, ..traffic };
    assert_eq!(lanes.next(0, &idle), Turn::Slow(waiting(1, 7, 5_000)), "there is nothing else to do");
    assert_eq!(lanes.next(0, &idle), Turn::Nothing);
}

#[test]
fn who_may_be_late_but_would_be_later_takes_any_seat() {
    let traffic = Traffic {
        workers: 2,
        seats: 1,
        busy_with_slow: 0,
        front: 3,
        lateness: 2,
        last: 99,
        batch_time: 10_000,
        slow_time: 0,
        median: 0,
        fast: Some(3),
    };
    let mut lanes = Lanes { running: 1, ..Lanes::default() };
    lanes.set_aside(waiting(1, 4, 15_000));
    assert_eq!(lanes.next(0, &traffic), Turn::Fast);
    lanes.set_aside(waiting(2, 4, 25_000));
    assert_eq!(lanes.next(0, &traffic), Turn::Slow(waiting(2, 4, 25_000)));
}

#[test]
fn debt_is_worked_off_by_no_more_workers_than_slow_samples_keep_busy() {
    // The trainer waits for batch 5, and far more was put off than two batches' slow samples.
    let traffic = Traffic {
        workers: 4,
        seats: 2,
        busy_with_slow: 2,
        front: 5,
        lateness: 8,
        last: 999,
        batch_time: 10_000,
        slow_time: 5_000,
        median: 0,
        fast: Some(5),
    };
    let put_off = [1, 2, 3].map(|id| waiting(id, 4, 50_000));
    for (running, expected) in [(1, Turn::Slow(put_off[0])), (2, Turn::Fast)] {
        let mut lanes = Lanes { running, ..Lanes::default() };
        put_off.into_iter().for_each(|sample| lanes.set_aside(sample));
        assert_eq!(lanes.next(0, &traffic), expected, "{running} are at slow samples");
    }
}

#[test]
fn what_another_holds_is_not_ours_to_finish() {
    let traffic = Traffic {
        workers: 2,
        seats: 1,
        busy_with_slow: 0,
        front: 1,
        lateness: 8,
        last: 99,
        batch_time: 1_000_000,
        slow_time: 0,
        median: 0,
        fast: Some(1),
    };
    let mut lanes = Lanes::default();
    let held: VecDeque<Waiting> = [7, 8].map(|id| Waiting { holder: Some(1), ..waiting(id, 1, 50) }).into();
    assert_eq!(lanes.between(held[0], false, &traffic), Verdict::GoOn, "there is a seat in the slow lane");
    assert_eq!(lanes.between(held[1], false, &traffic), Verdict::Park);
    lanes.park(held[1]);
    lanes.finish();
    let idle = Traffic { fast: None, ..traffic };
    assert_eq!(lanes.next(0, &idle), Turn::Nothing);
    assert_eq!(lanes.next(1, &idle), Turn::Parked(held[1]));
    lanes.finish();
    lanes.clear();
    assert_eq!((lanes.parked(), lanes.running()), (0, 0));
}
