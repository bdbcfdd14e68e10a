//! Threads and virtual time. Time passes when a thread sends or receives a packet, sleeps or looks at the clock. The thread that made the
//! world is the *driver*: time also passes while the driver's calls wait. Calls of other threads wait for time to pass. Time stands still
//! while such a thread has something to do: until its call has returned and it has looked at the clock, so that the tool sees exact times.
//!
//! Every wait for another thread is bounded: a thread that takes too long is no longer waited for. If the driver sleeps outside this
//! library (packetdrill waits up to a second for a call to end before it makes the next), time passes by ticks, as real time would.

use crate::files::Files;
use crate::settings::Settings;
use crate::stack::{Sent, Stack};
use base::{Duration, Instant};
use rustix::io::Errno;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Real time between two checks whether the driver moves; also the virtual time that passes at each check while it sleeps.
const TICK: std::time::Duration = std::time::Duration::from_millis(10);
/// Checks of a sleeping driver before time passes without it: 0.1 s, far below packetdrill's 1 s.
const TICKS_PATIENCE: u32 = 10;
/// Checks of a thread that must return before it is given up: 3 s.
const TICKS_MAX: u32 = 300;
/// Virtual time after which a driver's call without an end is interrupted, and after which waiting for a packet ends: longer than any timer
/// of TCP, since a retransmission waits 120 s at most.
const PATIENCE: Duration = Duration::from_secs(300);

/// A thread that waits in a call, or for which the driver must wait.
struct Waiter {
    thread: ThreadId,
    /// Time at which its call times out; `None` if never.
    until: Option<Instant>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits and has nothing to do.
    Asleep,
    /// It was woken and checks whether its call can end.
    Awake,
    /// Its call has ended; it has not looked at the clock yet.
    Returned,
}

/// The state on which calls work.
pub(crate) struct State {
    pub(crate) stack: Stack,
    pub(crate) files: Files,
    waiters: Vec<Waiter>,
    /// Number of threads that let time pass now.
    movers: u32,
    /// Counts each time a thread begins or ends to let time pass.
    steps: u64,
}

/// A machine under test, with the threads of the tool that use it.
pub(crate) struct World {
    state: Mutex<State>,
    changed: Condvar,
    driver: ThreadId,
    /// The driver's thread id in the kernel.
    task: i32,
}

/// For how long no thread has let time pass, as a sleeping thread has seen it.
struct Still {
    /// [`State::steps`] when the count began.
    steps: u64,
    /// Silent ticks since then in which the driver slept.
    ticks: u32,
}

type Guard<'w> = MutexGuard<'w, State>;

impl State {
    /// Wakes all waiting threads if readiness has changed, otherwise only those with an expired time-out. True if readiness has changed.
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
    /// Makes a world; the calling thread becomes its driver.
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

    /// Makes a call. `attempt` returns its result, or `None` if the call must wait. Then it is called again after each event, and a last
    /// time, with `true`, when `timeout` is over.
    ///
    /// # Errors
    /// The call's error; EINTR if it is the driver's call and nothing ends it.
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

    /// Makes a call that never waits.
    ///
    /// # Errors
    /// The call's error.
    pub(crate) fn call_at_once<T>(
        &self,
        mut call: impl FnMut(&mut State) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.call(None, |state, _| Some(call(state)))
    }

    /// True if the tool got `fd` from this library.
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

    /// The current time. A look at the clock takes a microsecond, as in reality, but none for a thread directly after its call.
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

    /// Delivers an IP packet to the machine. False if it is not an IP packet.
    pub(crate) fn inject(&self, packet: &[u8]) -> bool {
        let mut state = self.enter();
        let is_packet = state.stack.inject(packet);
        state.wake();
        self.leave(state);
        is_packet
    }

    /// The next packet that the machine sends. Lets time pass until there is one, at most [`PATIENCE`].
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

    /// The calling thread begins to let time pass.
    fn enter(&self) -> Guard<'_> {
        let mut state = self.lock();
        state.movers += 1;
        state.steps += 1;
        state
    }

    /// The calling thread stops letting time pass, after threads with something to do have done it.
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

    /// Waits for another thread. True if no thread has notified for a tick.
    fn tick<'w>(&'w self, state: Guard<'w>) -> (Guard<'w>, bool) {
        let (state, end) = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
        (state, end.timed_out())
    }

    /// Lets time pass until `until` or until `stop` is true.
    fn advance<'w>(&'w self, state: Guard<'w>, until: Instant, stop: impl Fn(&Stack) -> bool) -> Guard<'w> {
        let mut state = self.let_go(state);
        while !stop(&state.stack) && state.stack.step(until) {
            state.wake();
            state = self.let_go(state);
        }
        state
    }

    /// Lets time pass until the driver's own call ends.
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

    /// Waits until the call of the calling thread, which is not the driver, ends.
    fn sleep<'w, T>(
        &'w self,
        mut state: Guard<'w>,
        until: Option<Instant>,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let thread = std::thread::current().id();
        let mut still = Still { steps: state.steps, ticks: 0 };
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

    /// Called after a silent tick: if no thread lets time pass and the driver has slept for [`TICKS_PATIENCE`] ticks, lets a tick pass.
    fn pace(&self, state: &mut State, still: &mut Still) {
        if still.steps != state.steps || state.movers > 0 || !is_asleep(self.task) {
            *still = Still { steps: state.steps, ticks: 0 };
            return;
        }
        still.ticks += 1;
        if still.ticks > TICKS_PATIENCE {
            let until = state.stack.now().plus(Duration::from_ms(TICK.as_millis() as u64));
            while state.waiters.iter().all(|waiter| waiter.stage == Stage::Asleep) && state.stack.step(until)
            {
                state.wake();
            }
        }
    }
}

/// True if this thread of the process sleeps in the kernel (`/proc/self/task/N/stat`: number, name in parentheses, state).
fn is_asleep(task: i32) -> bool {
    let stat = std::fs::read(format!("/proc/self/task/{task}/stat")).unwrap_or_default();
    let after_name = stat.iter().rposition(|byte| *byte == b')').map(|at| at + 2);
    after_name.and_then(|at| stat.get(at)) == Some(&b'S')
}
