//! Threads and time. Packets, sleeps and looks at the clock let time pass, whichever thread makes them. The thread that began
//! the world is the *driver*: its calls let time pass when they have to wait. Calls of other threads wait for it to pass; it
//! stands while one of them has something to do, until it has returned and looked at the clock, so that the tool sees exact
//! times.
//!
//! Every wait for another thread is bounded: one that does not come is no longer waited for. A driver that sleeps somewhere
//! else (packetdrill waits up to a second for a call to end before it makes the next) lets time pass tick by tick, as it would
//! in the world outside.

use crate::files::Files;
use crate::settings::Settings;
use crate::stack::{Sent, Stack};
use base::{Duration, Instant};
use rustix::io::Errno;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// One look at whether the driver moves; also by how much time passes at each look while it sleeps.
const TICK: std::time::Duration = std::time::Duration::from_millis(10);
/// Looks at a sleeping driver before time passes without it: 0.1 s, far below packetdrill's 1 s.
const TICKS_PATIENCE: u32 = 10;
/// Looks at a thread that is to return before it is given up: 3 s.
const TICKS_MAX: u32 = 300;
/// A call of the driver that nothing ends is interrupted, and a packet that does not leave is given up, after this time:
/// longer than any timer of TCP, for which a retransmission waits 120 s at most.
const PATIENCE: Duration = Duration::from_secs(300);

/// A thread that the driver has to wait for or that waits itself.
struct Waiter {
    thread: ThreadId,
    /// When its call gives up by itself.
    until: Option<Instant>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing to do.
    Asleep,
    /// Something has happened; it looks whether its call can end.
    Awake,
    /// Its call has ended; it has not looked at the clock yet.
    Returned,
}

/// What calls work on.
pub(crate) struct State {
    pub(crate) stack: Stack,
    pub(crate) files: Files,
    waiters: Vec<Waiter>,
    /// Threads that let time pass just now.
    movers: u32,
    /// How often one began or ended to.
    steps: u64,
}

/// See the module.
pub(crate) struct World {
    state: Mutex<State>,
    changed: Condvar,
    driver: ThreadId,
    /// The driver's number in the kernel.
    task: i32,
}

type Guard<'w> = MutexGuard<'w, State>;

impl State {
    /// Readiness has changed or a time has come: whoever waits looks again. True when readiness has changed.
    fn wake(&mut self) -> bool {
        let has_news = self.stack.take_news();
        let now = self.stack.now();
        for waiter in &mut self.waiters {
            if waiter.stage == Stage::Asleep && (has_news || waiter.until.is_some_and(|until| now >= until)) {
                waiter.stage = Stage::Awake;
            }
        }
        has_news
    }

    fn of(&mut self, thread: ThreadId) -> Option<&mut Waiter> {
        self.waiters.iter_mut().find(|waiter| waiter.thread == thread)
    }

    fn set(&mut self, thread: ThreadId, stage: Stage, until: Option<Instant>) {
        match self.of(thread) {
            Some(waiter) => (waiter.stage, waiter.until) = (stage, until),
            None => self.waiters.push(Waiter { thread, until, stage }),
        }
    }
}

impl World {
    /// A world whose driver is the calling thread.
    pub(crate) fn new(settings: Settings) -> Self {
        let state = State {
            stack: Stack::new(settings),
            files: Files::default(),
            waiters: Vec::new(),
            movers: 0,
            steps: 0,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            driver: std::thread::current().id(),
            task: rustix::thread::gettid().as_raw_nonzero().get(),
        }
    }

    /// Does a call. `attempt` ends it or says `None`: then it is made again whenever something has happened, and for the last
    /// time, with `true`, when `timeout` is over.
    ///
    /// # Errors
    /// The call's; EINTR when it is the driver's and nothing ends it.
    pub(crate) fn call<T>(
        &self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut State, bool) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let mut state = if self.is_driver() { self.enter() } else { self.lock() };
        let until = timeout.map(|timeout| state.stack.now().plus(timeout));
        let mut attempt = move |state: &mut State| {
            let is_over = until.is_some_and(|until| state.stack.now() >= until);
            let done = attempt(state, is_over);
            state.stack.settle();
            done
        };
        let done = attempt(&mut state);
        if self.is_driver() {
            state.wake();
            let (state, done) = match done {
                Some(done) => (state, done),
                None => self.drive(state, until, attempt),
            };
            self.leave(state);
            return done;
        }
        let thread = std::thread::current().id();
        let Some(done) = done else {
            state.set(thread, Stage::Asleep, until);
            state.wake();
            return self.sleep(state, until, attempt);
        };
        state.wake();
        state.set(thread, Stage::Returned, None);
        done
    }

    /// A call that never waits.
    ///
    /// # Errors
    /// The call's.
    pub(crate) fn call_at_once<T>(
        &self,
        mut call: impl FnMut(&mut State) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.call(None, |state, _| Some(call(state)))
    }

    /// Whether `fd` is one of ours.
    pub(crate) fn has(&self, fd: i32) -> bool {
        self.lock().files.has(fd)
    }

    /// Lets this much time pass.
    pub(crate) fn sleep_for(&self, time: Duration) {
        let state = self.enter();
        let until = state.stack.now().plus(time);
        let state = self.advance(state, until, |_| false);
        self.leave(state);
    }

    /// The clock. It has gone on by a microsecond, as it does outside between two looks, but not for a thread whose call has
    /// just ended.
    pub(crate) fn clock(&self) -> Instant {
        let thread = std::thread::current().id();
        let mut state = self.lock();
        if state.of(thread).is_some() {
            state.waiters.retain(|waiter| waiter.thread != thread);
            self.changed.notify_all();
            return state.stack.now();
        }
        drop(state);
        self.sleep_for(Duration::from_us(1));
        self.lock().stack.now()
    }

    /// An IP packet for the machine. False when it is none.
    pub(crate) fn inject(&self, packet: &[u8]) -> bool {
        let mut state = self.enter();
        let is_packet = state.stack.inject(packet);
        state.wake();
        self.leave(state);
        is_packet
    }

    /// The next packet that leaves the machine; time passes until there is one, but not for ever.
    pub(crate) fn next_sent(&self) -> Option<Sent> {
        let state = self.enter();
        let until = state.stack.now().plus(PATIENCE);
        let mut state = self.advance(state, until, Stack::has_sent);
        let sent = state.stack.next_sent();
        self.leave(state);
        sent
    }

    fn is_driver(&self) -> bool {
        std::thread::current().id() == self.driver
    }

    fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread lets time pass.
    fn enter(&self) -> Guard<'_> {
        let mut state = self.lock();
        state.movers += 1;
        state.steps += 1;
        state
    }

    /// It no longer does; but first those who have something to do do it.
    fn leave<'w>(&'w self, state: Guard<'w>) {
        let mut state = self.let_go(state);
        state.movers -= 1;
        state.steps += 1;
    }

    /// Waits until every other thread that has something to do has done it.
    fn let_go<'w>(&'w self, mut state: Guard<'w>) -> Guard<'w> {
        let thread = std::thread::current().id();
        for _ in 0..TICKS_MAX {
            if state.waiters.iter().all(|waiter| waiter.stage == Stage::Asleep || waiter.thread == thread) {
                return state;
            }
            self.changed.notify_all();
            state = self.tick(state).0;
        }
        state.waiters.retain(|waiter| waiter.stage != Stage::Returned);
        state
    }

    /// Waits for another thread. True when none has said anything for a tick.
    fn tick<'w>(&'w self, state: Guard<'w>) -> (Guard<'w>, bool) {
        let (state, end) = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
        (state, end.timed_out())
    }

    /// Lets time pass up to `until` or to what `stop` waits for.
    fn advance<'w>(&'w self, state: Guard<'w>, until: Instant, stop: impl Fn(&Stack) -> bool) -> Guard<'w> {
        let mut state = self.let_go(state);
        while !stop(&state.stack) && state.stack.step(until) {
            state.wake();
            state = self.let_go(state);
        }
        state
    }

    /// The driver's own call waits: time passes.
    fn drive<'w, T>(
        &'w self,
        mut state: Guard<'w>,
        until: Option<Instant>,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> (Guard<'w>, Result<T, Errno>) {
        let limit = state.stack.now().plus(PATIENCE);
        let end = until.map_or(limit, |until| until.min(limit));
        loop {
            let has_passed = state.stack.step(end);
            let has_news = state.wake();
            state = self.let_go(state);
            if has_news || !has_passed {
                if let Some(done) = attempt(&mut state) {
                    state.wake();
                    return (state, done);
                }
                if !has_passed {
                    return (state, Err(Errno::INTR));
                }
            }
        }
    }

    /// The calling thread's call waits for the driver.
    fn sleep<'w, T>(
        &'w self,
        mut state: Guard<'w>,
        until: Option<Instant>,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let thread = std::thread::current().id();
        let mut still = (state.steps, 0);
        loop {
            while state.of(thread).is_some_and(|waiter| waiter.stage == Stage::Asleep) {
                let (woken, is_silent) = self.tick(state);
                state = woken;
                if is_silent {
                    self.pace(&mut state, &mut still);
                }
            }
            let done = attempt(&mut state);
            let stage = if done.is_some() { Stage::Returned } else { Stage::Asleep };
            state.set(thread, stage, until);
            state.wake();
            self.changed.notify_all();
            if let Some(done) = done {
                return done;
            }
        }
    }

    /// A tick has passed outside: when nobody else lets time pass and the driver has slept for some time, it passes here.
    fn pace(&self, state: &mut State, still: &mut (u64, u32)) {
        if still.0 != state.steps || state.movers > 0 || !is_asleep(self.task) {
            *still = (state.steps, 0);
            return;
        }
        still.1 += 1;
        if still.1 > TICKS_PATIENCE {
            let until = state.stack.now().plus(Duration::from_ms(TICK.as_millis() as u64));
            while state.waiters.iter().all(|waiter| waiter.stage == Stage::Asleep) && state.stack.step(until)
            {
                state.wake();
            }
        }
    }
}

/// True when this thread of ours sleeps in the kernel (`/proc/self/task/N/stat`: number, name in brackets, state).
fn is_asleep(task: i32) -> bool {
    let stat = std::fs::read(format!("/proc/self/task/{task}/stat")).unwrap_or_default();
    let after_name = stat.iter().rposition(|byte| *byte == b')').map(|at| at + 2);
    after_name.and_then(|at| stat.get(at)) == Some(&b'S')
}
