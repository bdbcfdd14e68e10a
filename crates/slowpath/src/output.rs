//! Commands and frames to the cores. If a core's ring is full they wait here: commands without limit, frames up to a limit.

use flow::{Command, CommandSender, FRAME_COPY_MAX};
use std::collections::VecDeque;

/// Most frames that wait for one core beyond those in its ring: enough to answer a burst of as many SYNs as there may be half-open
/// connections. A core that does not take that many has stalled for long; TCP repeats the frames that are lost.
const FRAMES_WAITING: usize = 16_384;

#[derive(Debug)]
enum Waiting {
    Command(Command),
    Send(Box<[u8]>),
    Receive(Box<[u8]>),
}

#[derive(Debug)]
struct Core {
    sender: CommandSender,
    waiting: VecDeque<Waiting>,
    frames: usize,
}

/// The command rings of all cores, with what waits for room in them.
#[derive(Debug)]
pub(crate) struct Output {
    cores: Vec<Core>,
}

impl Output {
    pub(crate) fn new(senders: Vec<CommandSender>) -> Self {
        let core = |sender| Core { sender, waiting: VecDeque::new(), frames: 0 };
        Self { cores: senders.into_iter().map(core).collect() }
    }

    pub(crate) fn cores(&self) -> usize {
        self.cores.len()
    }

    pub(crate) fn command(&mut self, core: u8, command: Command) {
        let Some(core) = self.cores.get_mut(usize::from(core)) else { return };
        let late = if core.waiting.is_empty() { core.sender.push(command).err() } else { Some(command) };
        core.waiting.extend(late.map(Waiting::Command));
    }

    /// Sends a frame through a core. False when the frame is lost.
    pub(crate) fn send(&mut self, core: u8, frame: &[u8]) -> bool {
        self.frame(core, frame, CommandSender::push_frame, Waiting::Send)
    }

    /// Returns a received frame to a core. False when it is lost.
    pub(crate) fn receive(&mut self, core: u8, frame: &[u8]) -> bool {
        self.frame(core, frame, CommandSender::push_received, Waiting::Receive)
    }

    fn frame(
        &mut self,
        core: u8,
        frame: &[u8],
        push: fn(&mut CommandSender, &[u8]) -> bool,
        wrap: fn(Box<[u8]>) -> Waiting,
    ) -> bool {
        let Some(core) = self.cores.get_mut(usize::from(core)) else { return false };
        if frame.len() > FRAME_COPY_MAX {
            return false;
        }
        if core.waiting.is_empty() && push(&mut core.sender, frame) {
            return true;
        }
        let has_room = core.frames < FRAMES_WAITING;
        if has_room {
            core.frames += 1;
            core.waiting.push_back(wrap(frame.into()));
        }
        has_room
    }

    /// True when an item waits because its core's ring was full.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.cores.iter().any(|core| !core.waiting.is_empty())
    }

    /// Moves waiting items into the rings, as far as they have room.
    pub(crate) fn flush(&mut self) {
        self.cores.iter_mut().for_each(Core::flush);
    }

    pub(crate) fn must_wake(&self, core: u8) -> bool {
        self.cores.get(usize::from(core)).is_some_and(|core| core.sender.must_wake())
    }
}

impl Core {
    fn flush(&mut self) {
        while let Some(item) = self.waiting.pop_front() {
            let is_frame = item.is_frame();
            let back = match item {
                Waiting::Command(command) => self.sender.push(command).err().map(Waiting::Command),
                Waiting::Send(frame) if self.sender.push_frame(&frame) => None,
                Waiting::Receive(frame) if self.sender.push_received(&frame) => None,
                full => Some(full),
            };
            match back {
                Some(item) => return self.waiting.push_front(item),
                None => self.frames -= usize::from(is_frame),
            }
        }
    }
}

impl Waiting {
    fn is_frame(&self) -> bool {
        !matches!(self, Self::Command(_))
    }
}
