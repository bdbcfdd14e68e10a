//! Each stage of a move against each answer, and cores that do not answer. Flows that move are tested by the simulator.

use super::*;
use crate::{Config, SlowPath};
use flow::{CommandReceiver, Exception, Flows, commands};
use std::sync::Arc;

/// A slow path with two cores, and what it says to them.
struct World {
    slow: SlowPath,
    now: Instant,
    cores: [CommandReceiver; 2],
}

impl World {
    fn new() -> Self {
        let flows = Arc::new(Flows::new(flow::Config { flows: 8, ..flow::Config::default() }, [1, 2]));
        let ((first, a), (second, b)) = (commands(64), commands(64));
        let config = Config { is_steered: true, ..Config::default() };
        let now = Instant::from_ns(1_000_000_000);
        Self { slow: SlowPath::new(config, flows, vec![first, second], now), now, cores: [a, b] }
    }

    /// Begins to move groups 0 and 1, of which core 0 has only the first, to core 1.
    fn moving() -> Self {
        let mut world = Self::new();
        let mut groups = GroupSet::of(0);
        groups.insert(1);
        assert_eq!(world.slow.move_groups(world.now, &groups, 0, 1), Ok(()));
        world
    }

    fn answer(&mut self, core: u8, exception: Exception) {
        self.slow.handle_exception(self.now, core, exception, &[]);
    }

    /// The commands that a core has got since the last call, in short.
    fn said(&mut self, core: usize) -> Vec<String> {
        let of = |command| match command {
            Command::Expect { groups, .. } => format!("expect {:?}", groups.iter().collect::<Vec<_>>()),
            Command::Yield { .. } => "yield".to_owned(),
            Command::Moved { to } => format!("moved {to}"),
            other => format!("{other:?}"),
        };
        std::iter::from_fn(|| self.cores[core].pop(|command, _| of(command))).collect()
    }

    /// The events since the last call, in short.
    fn events(&mut self) -> Vec<String> {
        let of = |event| match event {
            Event::Steer { core, .. } => format!("steer to {core}"),
            Event::MoveOver { groups } => format!("over {groups}"),
            other => format!("{other:?}"),
        };
        std::iter::from_fn(|| self.slow.poll_event().map(of)).collect()
    }

    /// Lets the time of an answer pass.
    fn wait(&mut self, patience: Duration) {
        for _ in 0..patience.as_ms() + 2 {
            self.now = self.now.plus(Duration::from_ms(1));
            self.slow.handle_timers(self.now);
        }
    }
}

#[test]
fn a_move_goes_through_its_stages_in_order() {
    let mut w = World::moving();
    assert_eq!((w.said(0), w.said(1)), (vec![], vec!["expect [0]".to_owned()]));
    // Answers of the wrong core, of another stage, or to another command change nothing.
    for (core, early) in [
        (0, Exception::Expecting { number: 1 }),
        (1, Exception::Expecting { number: 7 }),
        (0, Exception::Quiet { number: 1 }),
        (1, Exception::Taken),
    ] {
        w.answer(core, early);
        w.slow.steered(w.now);
        assert_eq!((w.events(), w.said(0), w.said(1)), (vec![], vec![], vec![]));
    }
    w.answer(1, Exception::Expecting { number: 1 });
    assert_eq!((w.events(), w.said(0)), (vec!["steer to 1".to_owned()], vec![]));
    w.slow.steered(w.now);
    assert_eq!(w.said(0), ["yield"]);
    assert_eq!(w.slow.group_cores()[0], 0, "new flows are the old core's until it is quiet");
    w.answer(0, Exception::Quiet { number: 1 });
    assert_eq!((w.said(0), w.slow.group_cores()[0]), (vec!["moved 1".to_owned()], 1));
    assert_eq!(w.slow.move_groups(w.now, &GroupSet::of(2), 0, 1), Err(MoveError::Busy));
    w.answer(1, Exception::Taken);
    assert_eq!((w.events(), w.said(1)), (vec!["over 1".to_owned()], vec![]));
    w.wait(QUEUE_PATIENCE);
    assert!(w.events().is_empty(), "no timer is left");
    assert_eq!(w.slow.move_groups(w.now, &GroupSet::of(2), 0, 1), Ok(()));
}

#[test]
fn a_core_that_does_not_expect_in_time_gets_nothing() {
    let mut w = World::moving();
    w.wait(PATIENCE);
    assert_eq!(w.events(), ["over 0"]);
    assert_eq!(w.said(1), ["expect [0]", "expect []"]);
    w.answer(1, Exception::Expecting { number: 1 });
    assert_eq!((w.events(), w.slow.group_cores()[0]), (vec![], 0), "its answer is too late");
    // The late answer to the first move is none to the second.
    assert_eq!(w.slow.move_groups(w.now, &GroupSet::of(0), 0, 1), Ok(()));
    w.answer(1, Exception::Expecting { number: 1 });
    assert!(w.events().is_empty());
    w.answer(1, Exception::Expecting { number: 2 });
    assert_eq!(w.events(), ["steer to 1"]);
}

#[test]
fn when_the_old_core_does_not_yield_in_time_the_port_is_steered_back() {
    let mut w = World::moving();
    w.answer(1, Exception::Expecting { number: 1 });
    w.slow.steered(w.now);
    w.wait(PATIENCE);
    assert_eq!(w.events(), ["steer to 1"], "its queue may be long");
    w.wait(QUEUE_PATIENCE);
    assert_eq!(w.events(), ["steer to 0"]);
    w.answer(0, Exception::Quiet { number: 1 });
    assert_eq!((w.said(0), w.said(1)), (vec!["yield".to_owned()], vec!["expect [0]".to_owned()]));
    w.slow.steered(w.now);
    assert_eq!((w.events(), w.said(1)), (vec!["over 0".to_owned()], vec!["expect []".to_owned()]));
    assert_eq!(w.slow.group_cores()[0], 0);
}

#[test]
fn what_cannot_move_is_refused() {
    let mut w = World::new();
    let first = GroupSet::of(0);
    for (from, to, error) in
        [(0, 0, MoveError::NoCore), (0, 2, MoveError::NoCore), (1, 0, MoveError::Nothing)]
    {
        assert_eq!(w.slow.move_groups(w.now, &first, from, to), Err(error));
    }
    w.slow.config.is_steered = false;
    assert_eq!(w.slow.move_groups(w.now, &first, 0, 1), Err(MoveError::NotSteered));
    assert_eq!((w.said(0), w.said(1)), (vec![], vec![]));
}
