//! What a thread of an application does, as the socket library sees it.

/// Sections of an application's thread: an index into what it tells the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Section {
    /// Outside the library: the program itself.
    Application = 0,
    /// Receiving: looking, copying, telling the sender.
    Receive = 1,
    /// Sending: copying, ringing.
    Send = 2,
    /// `epoll_wait`, `poll`, `select` and calls that wait: looking what is ready, also while it yields its processor.
    Wait = 3,
    /// Asleep in the kernel, in one of those.
    Asleep = 4,
    /// Writing the eventfd of somebody who sleeps.
    Wake = 5,
    /// Calls that the kernel answers, passed on.
    Kernel = 6,
    /// Sockets made, connected, accepted and closed, and what the service is asked for it.
    Control = 7,
}

impl Section {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Application,
        Self::Receive,
        Self::Send,
        Self::Wait,
        Self::Asleep,
        Self::Wake,
        Self::Kernel,
        Self::Control,
    ];

    /// In results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Receive => "receive",
            Self::Send => "send",
            Self::Wait => "wait",
            Self::Asleep => "asleep",
            Self::Wake => "wake",
            Self::Kernel => "kernel",
            Self::Control => "control",
        }
    }
}

const _: () = {
    let mut i = 0;
    while i < Section::ALL.len() {
        assert!(Section::ALL[i] as usize == i);
        i += 1;
    }
};
