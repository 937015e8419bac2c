//! Where workers take whole batches in turn, each has the batches that are its own, whoever is faster.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use sutler_core::{Draw, EpochPlan, JobCursor, Rota, SampleId};
use sutler_engine::{
    Boundary, Elsewhere, Engine, ErrorPolicy, Failure, ForeignRow, Job, JobOptions, Next, Order, Place,
    Preparation, Preparer, RowSpec, Rows, SampleRecord, ServingOrder,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Who was asked for which samples, in the order in which they were asked.
type Asked = Arc<Mutex<Vec<(usize, Vec<u32>)>>>;

/// Workers elsewhere that note what they are asked for. Worker 0 is much slower than the others.
struct Elsewheres {
    rota: Rota,
    asked: Asked,
}

impl Preparation for Elsewheres {
    fn row(&self) -> RowSpec {
        RowSpec::Varies
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn takes_whole_batches(&self) -> bool {
        true
    }

    fn rota(&self) -> Option<Rota> {
        Some(self.rota)
    }

    fn label(&self, _sample: SampleId) -> i64 {
        0
    }

    fn describe(&self, sample: SampleId) -> String {
        format!("sample {}", sample.0)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(Noting(Arc::clone(&self.asked)))
    }
}

struct Noting(Asked);

impl Preparer for Noting {
    fn prepare(
        &mut self,
        _sample: SampleId,
        _draw: Draw,
        _place: &mut dyn Place,
        _record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        unreachable!("they are prepared elsewhere")
    }

    fn prepare_elsewhere(
        &mut self,
        order: Order<'_>,
        _rows: &mut dyn Rows,
        _boundary: &mut dyn Boundary,
    ) -> Vec<Elsewhere> {
        let worker = order.worker.expect("workers take turns");
        assert!(order.whole_batch);
        self.0.lock().unwrap().push((worker, order.samples.iter().map(|sample| sample.0).collect()));
        if worker == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let done =
            || Elsewhere::Answered { record: SampleRecord::start(), result: Ok(ForeignRow::default()) };
        order.samples.iter().map(|_| done()).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_worker_is_asked_for_its_own_batches_in_order(
        workers in 1_usize..5, first in 0_usize..5, batches in 1_u64..30, ahead in 1_usize..9, ready in any::<bool>(),
    ) {
        let rota = Rota::new(workers, first);
        let asked = Asked::default();
        let preparation = Arc::new(Elsewheres { rota, asked: Arc::clone(&asked) });
        let order = if ready { ServingOrder::Ready { lateness: 3 } } else { ServingOrder::Strict };
        let options = JobOptions {
            batch_size: 2,
            batches_ahead: ahead,
            ahead_grows: false,
            batches_held: 1,
            errors: ErrorPolicy::Raise,
            go_on: true,
            in_step: false,
            order,
        };
        let job = Job::new(preparation, options).unwrap();
        let engine = Engine::new(workers).unwrap();
        let mut plan = EpochPlan::to_be_drawn(2, false, JobCursor::start_of(0)).unwrap();
        plan.extend(&(0..2 * batches).collect::<Vec<u64>>(), u32::MAX).unwrap();
        plan.end();
        let mut run = engine.start(&job, plan, 0);
        let mut served = 0;
        while let Next::Batch(_) = run.next(PATIENCE).unwrap() {
            served += 1;
        }
        prop_assert_eq!(served, batches);
        let asked = asked.lock().unwrap();
        for worker in 0..workers {
            let found: Vec<&Vec<u32>> = asked.iter().filter(|(who, _)| *who == worker).map(|(_, samples)| samples).collect();
            let expected: Vec<Vec<u32>> = (0..batches)
                .filter(|&batch| rota.worker(batch) == worker)
                .map(|batch| vec![2 * batch as u32, 2 * batch as u32 + 1])
                .collect();
            prop_assert!(found.iter().copied().eq(expected.iter()), "worker {}: {:?}", worker, found);
        }
    }
}
