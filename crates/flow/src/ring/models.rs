//! Loom models of the ring, and of a flow that goes from one core to another by it while frames come at both (crate `fastpath`: `moves.rs`,
//! `others.rs`). The ring is the real one; the cores are as small as the order of their steps allows.

use super::{Consumer, Producer, ring};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::collections::VecDeque;

/// Checks all interleavings with at most so many preemptions.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn send<T: Send>(to: &mut Producer<T>, item: T, frame: &[u8]) {
    let mut item = item;
    while let Err(back) = to.push(item, frame) {
        item = back;
        thread::yield_now();
    }
}

#[test]
fn loom_items_and_frames_arrive_whole_and_in_order_over_both_ends() {
    // Three bytes at most, so the area has eight: the third frame begins at its start.
    const FRAMES: [&[u8]; 4] = [&[1, 1, 1], &[2, 2], &[3, 3, 3], &[]];
    model(3, || {
        let (mut tx, mut rx) = ring::<usize>(2, 1, 3);
        let sender = thread::spawn(move || {
            FRAMES.iter().enumerate().for_each(|(i, frame)| send(&mut tx, i, frame));
        });
        for (i, frame) in FRAMES.into_iter().enumerate() {
            let got = loop {
                match rx.pop(|item, frame| (item, frame.to_vec())) {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, (i, frame.to_vec()));
        }
        sender.join().unwrap();
    });
}

/// Either the consumer sees the item before it sleeps, or the producer sees the sleeper. One sleep: of the words that both sides store to, the
/// model checker knows no order of changes beyond what the threads' own steps say.
#[test]
fn loom_an_item_pushed_to_a_sleeper_wakes_it() {
    model(3, || {
        let (mut tx, mut rx) = ring::<u8>(2, 1, 1);
        let sender = thread::spawn(move || {
            tx.push(1, &[7]).unwrap();
            tx.must_wake()
        });
        let sleeps = rx.prepare_sleep();
        let is_woken = sender.join().unwrap();
        assert!(!sleeps || is_woken);
        assert_eq!(rx.pop(|item, frame| (item, frame.to_vec())), Some((1, vec![7])));
    });
}

/// In a record's `core`: the flow is on its way to the core in the other bits.
const IN_TRANSIT: u8 = 2;
const OLD: u8 = 0;
const NEW: u8 = 1;

/// What a core hands to another. A frame's number is its only byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    Frame,
    Flow,
    Moved,
}

/// A flow's record, under its lock.
struct Flow {
    /// The core that serves the flow, or will.
    core: u8,
    /// The flow is in the lists of these cores.
    listed: [bool; 2],
    /// Numbers of the frames that were handled.
    handled: Vec<u8>,
}

/// A fast-path core: its ends of the rings, and what it parks.
struct Core {
    index: u8,
    record: Arc<Mutex<Flow>>,
    to_other: Producer<Message>,
    inbox: Consumer<Message>,
    /// Its queue of the port.
    queue: Consumer<()>,
    parked: VecDeque<u8>,
    /// Frames are parked until the flow has come. The new core says that it does so before anything else happens.
    expects: bool,
    has_arrivals: bool,
}

impl Core {
    /// As `Core::hear_others`, then the batch of frames. Returns the number of messages and frames.
    fn round(&mut self) -> usize {
        let mut count = 0;
        while let Some((message, frame)) = self.inbox.pop(|message, frame| (message, frame.first().copied()))
        {
            count += 1;
            match message {
                Message::Frame => self.packet(frame.expect("a frame has a byte")),
                Message::Flow => self.take_in(),
                Message::Moved => (self.expects, self.has_arrivals) = (false, true),
            }
        }
        if std::mem::take(&mut self.has_arrivals) {
            for _ in 0..self.parked.len() {
                let frame = self.parked.pop_front();
                frame.into_iter().for_each(|frame| self.packet(frame));
            }
        }
        while let Some(frame) = self.queue.pop(|(), frame| frame[0]) {
            count += 1;
            self.packet(frame);
        }
        count
    }

    /// Handles a frame, parks it, or passes it on to the other core, as `State::packet` and `State::hand_on` do.
    fn packet(&mut self, frame: u8) {
        let own = self.index;
        let mut flow = self.record.lock().unwrap();
        let core = flow.core;
        if core == own {
            assert!(flow.listed[usize::from(own)] && !flow.listed[usize::from(1 - own)]);
            return flow.handled.push(frame);
        }
        drop(flow);
        if core == own | IN_TRANSIT || self.expects {
            self.parked.push_back(frame);
        } else {
            // The real core counts a frame that finds no room as lost: here the rings have room for all.
            self.to_other.push(Message::Frame, &[frame]).expect("there is room");
        }
    }

    /// Gives the flow to the other core, in the order of `State::hand_over`.
    fn hand_over(&mut self) {
        let mut flow = self.record.lock().unwrap();
        assert_eq!(flow.core, self.index);
        flow.listed[usize::from(self.index)] = false;
        flow.core = (1 - self.index) | IN_TRANSIT;
        self.to_other.push(Message::Flow, &[]).expect("there is room");
    }

    /// Takes in a flow that the other core has given, in the order of `Core::take_in`.
    fn take_in(&mut self) {
        let mut flow = self.record.lock().unwrap();
        assert_eq!(flow.core, self.index | IN_TRANSIT);
        flow.core = self.index;
        flow.listed[usize::from(self.index)] = true;
        self.has_arrivals = true;
    }
}

/// Two cores, and the port's ends of their queues.
fn cores() -> ([Core; 2], [Producer<()>; 2], Arc<Mutex<Flow>>) {
    let record = Arc::new(Mutex::new(Flow { core: OLD, listed: [true, false], handled: Vec::new() }));
    let (to_new, from_old) = ring(4, 4, 1);
    let (to_old, from_new) = ring(4, 4, 1);
    let (port_old, queue_old) = ring(4, 4, 1);
    let (port_new, queue_new) = ring(4, 4, 1);
    let core = |index, to_other, inbox, queue| Core {
        index,
        record: record.clone(),
        to_other,
        inbox,
        queue,
        parked: VecDeque::new(),
        expects: false,
        has_arrivals: false,
    };
    let old = core(OLD, to_new, from_new, queue_old);
    let new = core(NEW, to_old, from_old, queue_new);
    ([old, new], [port_old, port_new], record)
}

/// The new core goes on polling, beside the old one, until both are quiet.
fn settle([mut old, mut new]: [Core; 2], record: &Mutex<Flow>) -> Vec<u8> {
    while old.round() + new.round() > 0 {}
    assert_eq!((old.parked.len(), new.parked.len()), (0, 0), "no frame is left behind");
    let mut flow = record.lock().unwrap();
    let is = (flow.core, flow.listed);
    assert_eq!(is, (NEW, [false, true]), "the flow is in the lists of the core that serves it");
    std::mem::take(&mut flow.handled)
}

/// The new core expects the flow, and goes on for three rounds beside the old one, which acts. Returns both; `settle` goes on from there.
/// Either one is in the first thread: the model checker begins with that thread's steps, and does not reach all orders from there.
fn race(is_old_first: bool, mut new: Core, act: impl FnOnce() -> Core + Send + 'static) -> [Core; 2] {
    new.expects = true;
    let go_on = move || {
        (0..3).for_each(|_| _ = new.round());
        new
    };
    if is_old_first {
        let beside = thread::spawn(go_on);
        let old = act();
        [old, beside.join().unwrap()]
    } else {
        let beside = thread::spawn(act);
        let new = go_on();
        [beside.join().unwrap(), new]
    }
}

/// The order of steps of the slow path (its file `moves.rs`), which does its part in the old core's thread: the port brings frames to the new
/// core; the old core handles what it has, and hands the flow over. Frame 3 comes at the new core meanwhile.
fn steered(is_old_first: bool) {
    let ([mut old, new], [mut port_old, mut port_new], record) = cores();
    port_old.push((), &[1]).unwrap();
    // The port is steered.
    port_new.push((), &[2]).unwrap();
    let both = race(is_old_first, new, move || {
        old.round();
        old.hand_over();
        port_new.push((), &[3]).unwrap();
        old.to_other.push(Message::Moved, &[]).unwrap();
        old
    });
    assert_eq!(settle(both, &record), [1, 2, 3]);
}

#[test]
fn loom_a_flow_moves_over_a_steered_port_and_its_frames_stay_in_order() {
    model(3, || steered(true));
    model(3, || steered(false));
}

/// The port cannot be steered: frames come at both cores, before and after the flow has moved. What comes at the old core stays in its order, but
/// frames of different queues may overtake each other.
fn spread(is_old_first: bool) {
    let ([mut old, mut new], [mut port_old, mut port_new], record) = cores();
    // Before the new core expects the flow it hands its frames on to the old one.
    port_new.push((), &[11]).unwrap();
    new.round();
    port_old.push((), &[1]).unwrap();
    port_new.push((), &[12]).unwrap();
    let both = race(is_old_first, new, move || {
        old.round();
        old.hand_over();
        port_old.push((), &[2]).unwrap();
        old.round();
        old.to_other.push(Message::Moved, &[]).unwrap();
        old
    });
    let handled = settle(both, &record);
    let of = |from: [u8; 2]| handled.iter().copied().filter(move |frame| from.contains(frame));
    assert!(of([1, 2]).eq([1, 2]), "{handled:?}");
    assert_eq!((of([11, 12]).count(), handled.len()), (2, 4), "{handled:?}");
}

#[test]
fn loom_a_flow_moves_while_frames_come_at_both_cores_and_each_is_handled_once() {
    model(3, || spread(true));
    model(3, || spread(false));
}
